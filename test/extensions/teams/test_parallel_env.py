import dataclasses
import functools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from evidence import assert_sound
from x_server import display  # noqa: F401 - a fixture

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.core.code_types import Severity
from embodied_env.errors import ClosedError, ContractError, ResetNeededError, UsageError
from embodied_env.extensions.teams.team_file import load_team, parse_team

pytest.importorskip("pettingzoo", reason="needs the extra multi")

from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test
from pettingzoo.utils import parallel_to_aec

TEAMS = ("two_carts", pytest.param("two_arms", marks=pytest.mark.long))
STILL = np.zeros(2)
AHEAD = np.array([1.0, 0.0])
HEAD = "team: embodied_env/1\nname: t\nworld: {mujoco: {}}\n"


@functools.cache
def loaded(team):
    """Load a team once, which is possible since it is immutable."""
    return load_team(team)


@pytest.fixture
def make(close_later):
    def build(team="two_carts", **options):
        return close_later(embodied_env.parallel_env(loaded(team), **{"clock": "virtual", **options}))

    return build


@functools.cache
def team_with(horizons=(400, 400), *, extra="", world=""):
    """Return the two carts with these horizons, and optionally other changes and world keys."""
    agents = "".join(
        f"  cart_{n}: {{contract: cart_goal, changes: {{episode: {{horizon_steps: {horizon}}}, "
        f"reset_options: {{obstacle_phase: null}}{extra if n == 2 else ''}}}}}\n"
        for n, horizon in enumerate(horizons, start=1)
    )
    world = world or "shared: [floor], mujoco: {model: two_carts.xml}"
    return parse_team(f"team: embodied_env/1\nname: test\nagents:\n{agents}world: {{{world}}}", source="test.yaml")


def all_do(env, action):
    return dict.fromkeys(env.agents, action)


def in_the_world(env, sensor, field, agent):
    """Return a reading of the last step."""
    return env.last_transition(agent).snapshot.samples[sensor].values[field]


# ---------------------------------------------------------------------------------------------- PettingZoo's tests


@pytest.mark.parametrize("team", TEAMS)
def test_the_parallel_api_test_passes_with_one_warning(make, team):
    with pytest.warns(UserWarning, match="ignored reset options") as warned:
        parallel_api_test(make(team, clock=None), num_cycles=30)
    assert all("ignored reset options: 'options' (" in str(warning.message) for warning in warned)


@pytest.mark.parametrize("team", TEAMS)
def test_the_parallel_seed_test_passes(make, team):
    parallel_seed_test(lambda: make(team, clock=None), num_cycles=30)


@pytest.mark.parametrize("team", TEAMS)
def test_the_sequential_view_passes_the_seed_test(make, team):
    seed_test(lambda: parallel_to_aec(make(team, clock=None)), num_cycles=30)


@pytest.mark.parametrize("team", TEAMS)
def test_the_sequential_view_passes_the_api_test(make, team):
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*(Observation|ignored reset options)"
        )  # a Dict of Boxes is neither an array nor a Box
        api_test(parallel_to_aec(make(team, clock=None)), num_cycles=30)


# ---------------------------------------------------------------------------------------------------------- seeds


def episode(env, *, seed, steps, actions_seed=7):
    rng = np.random.default_rng(actions_seed)
    results = [env.reset(seed=seed)]
    for _ in range(steps):
        if env.agents:
            actions = {agent: rng.uniform(-1.0, 1.0, env.action_space(agent).shape) for agent in env.agents}
            results.append(env.step(actions))
    return results


@pytest.mark.parametrize("team", TEAMS)
def test_a_seed_gives_identical_bits_after_any_episode(make, team):
    used, new = make(team), make(team)
    episode(used, seed=3, steps=5)
    mine, others = episode(used, seed=11, steps=15), episode(new, seed=11, steps=15)
    assert len(mine) > 10
    np.testing.assert_equal(mine, others)  # exactly; NaN equals NaN


def test_different_seeds_give_different_worlds(make):
    env = make()
    one, other = env.reset(seed=1)[0], env.reset(seed=2)[0]
    assert not np.array_equal(one["cart_1"]["scan_ranges"], other["cart_1"]["scan_ranges"])


def test_the_robots_of_one_team_have_independent_noise(make):
    observations, _ = make(team_with()).reset(
        seed=1, options={f"cart_{n}": {"goal": [3.7, 0.5], "start": [-3.5, 0.5, 0.0]} for n in (1, 2)}
    )
    assert not np.array_equal(
        observations["cart_1"]["imu_angular_velocity"], observations["cart_2"]["imu_angular_velocity"]
    )


def test_virtual_time_advances_one_period_per_step_of_all_agents(make):
    env = make(host_timing=True)
    env.reset(seed=1)
    for _ in range(3):
        infos = env.step(all_do(env, STILL))[4]
    assert infos["cart_1"]["latency"]["period_s"] == infos["cart_2"]["latency"]["period_s"] == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------ termination of agents


def test_a_finished_agent_is_reported_once_and_removed(make):
    env = make(team_with((2, 4)))
    env.reset(seed=1)
    steps = []
    while env.agents:
        steps.append((list(env.agents), *(sorted(part) for part in env.step(all_do(env, STILL)))))
    both, one = ["cart_1", "cart_2"], ["cart_2"]
    assert steps == [(both,) * 1 + (both,) * 5] * 2 + [(one,) * 6] * 2
    assert env.possible_agents == both


def test_a_finished_robot_brakes_to_rest_within_its_limits(make):
    env = make(team_with((8, 60)), backend="fake")
    env.reset(seed=1)
    while env.agents:
        env.step(all_do(env, AHEAD))
    sent = np.array(
        [command.values[:2] for command in env._shared.backend.sent]
    )  # the commands stored by the fake backend
    slowing = -np.diff(sent[7:, 0]) / 0.1
    assert sent[7, 0] > 0.5
    assert slowing.max() <= 1.5 * 0.9 + 1e-9  # the deceleration of the contract, after its margin
    assert slowing.min() >= 0.0
    assert sent[-1].tolist() == [0.0, 0.0]


def test_a_malformed_action_brakes_only_its_own_robot(make):
    env = make()
    env.reset(seed=1)
    for _ in range(4):
        env.step(all_do(env, AHEAD))
    infos = env.step({"cart_1": np.array([np.nan, 0.0]), "cart_2": AHEAD})[4]
    assert infos["cart_1"]["safety"]["disposition"] == Severity.HOLD
    assert infos["cart_2"]["safety"]["disposition"] < Severity.HOLD
    speeds = [infos[agent]["action"]["applied_si"]["linear.x"] for agent in env.agents]
    before = [env.last_transition(agent).report.velocity_si[0] for agent in env.agents]
    assert speeds[0] < speeds[1]
    assert before == speeds


def test_consecutive_malformed_actions_end_the_episode_of_only_that_robot(make):
    env = make()
    env.reset(seed=1)
    for _ in range(3):
        truncations = env.step({"cart_1": None, "cart_2": STILL})[3]
    assert truncations == {"cart_1": True, "cart_2": False}
    env.step({"cart_2": STILL})
    assert env.agents == ["cart_2"]


def test_a_collision_of_two_carts_is_measured_by_both(make):
    env = make()
    env.reset(seed=1, options={"cart_1": {"start": [-3.1, 0.8, -0.8]}, "cart_2": {"start": [-3.1, -0.8, 0.8]}})
    while env.agents:
        _, _, terminations, _, infos = env.step(all_do(env, AHEAD))
    assert terminations == {"cart_1": True, "cart_2": True}
    assert [info["end_reason"] for info in infos.values()] == ["failure:collision"] * 2
    places = [in_the_world(env, "true_pose", "position", agent)[:2] for agent in env.possible_agents]
    assert 0.25 < np.linalg.norm(places[0] - places[1]) < 0.5


def test_a_contact_of_two_arms_is_reported_to_the_evaluator(make):
    env = make("two_arms", evaluator_info=True)
    env.reset(seed=1)
    swing = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    touched = dict.fromkeys(env.agents, False)
    for _ in range(60):
        if set(env.agents) != set(touched) or all(touched.values()):
            break
        infos = env.step({"arm_1": swing, "arm_2": -swing})[4]
        touched = {
            agent: touched[agent] or bool(info["evaluator"]["collision"]["data"][0]) for agent, info in infos.items()
        }
    assert touched == {"arm_1": True, "arm_2": True}


def test_a_finished_cart_is_still_visible_to_the_other(make):
    env = make(team_with((1, 4)))
    options = {"cart_1": {"start": [-3.5, -0.2, 0.0]}, "cart_2": {"start": [-3.5, -1.0, 1.57]}}
    env.reset(seed=1, options=options)
    env.step(all_do(env, STILL))
    observations = env.step(all_do(env, STILL))[0]
    assert observations["cart_2"]["scan_ranges"][44:46].max() < 0.8


# ----------------------------------------------------------------------------------------------------------- world


def test_a_lost_world_truncates_all_agents(make):
    env = make(backend="fake", faults=[ScriptedFault(kind="refuse", step=2)])
    env.reset(seed=1)
    env.step(all_do(env, STILL))
    _, _, _, truncations, infos = env.step(all_do(env, STILL))
    assert truncations == {"cart_1": True, "cart_2": True}
    assert {info["end_reason"].partition(":")[0] for info in infos.values()} == {"backend_lost"}
    assert env.agents == []


def test_late_sensor_is_a_gap_of_its_robot_only(make):
    env = make(backend="fake", faults=[ScriptedFault(kind="drop", step=1, sensor="cart_2_odom")])
    env.reset(seed=1)
    infos = env.step(all_do(env, STILL))[4]
    assert [info["end_reason"] for info in infos.values()] == ["", "sensor_gap:odom"]


def test_each_robot_has_a_separate_account(make):
    env = make()
    env.reset(seed=1)
    infos = env.step(all_do(env, STILL))[4]
    contracts = {agent: env.contract(agent).fingerprint for agent in env.agents}
    assert {agent: info["contract"] for agent, info in infos.items()} == contracts
    assert len(set(contracts.values())) == 2
    assert infos["cart_1"]["sensors"].keys() == {"odom", "scan", "goal", "imu"}


def test_reset_options_belong_to_a_robot_or_the_world(make):
    env = make()
    env.reset(seed=1, options={"cart_2": {"start": [-3.2, -1.0, 0.0]}, "world": {"person_phase": 0.25}})
    sampled = env.world_reset.sampled
    assert sampled["cart_2_start"].tolist() == [-3.2, -1.0, 0.0]
    assert sampled["person_phase"] == 0.25


def test_a_robot_receives_only_its_own_sampled_values(make):
    infos = make(evaluator_info=True).reset(seed=1)[1]
    assert infos["cart_1"]["reset"]["sampled"].keys() == {"start", "goal"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cart_1": {"stat": [0, 0, 0]}}, "unknown reset option 'stat' .expected one of: goal, start"),
        ({"world": {"cart_1_goal": [3.2, -1.0]}}, "of the world: 'cart_1_goal' \\(expected one of: person_phase\\)"),
        ({"world": {"person_phase": 2.0}}, r"invalid reset option person_phase=2.0"),
        ([1], r"options: \[1\]"),
    ],
)
def test_an_invalid_reset_option_is_rejected(make, options, message):
    with pytest.raises(UsageError, match=message):
        make(backend="fake").reset(seed=1, options=options)


def test_a_rejected_reset_draws_no_seed(make):
    env, other = make(backend="fake"), make(backend="fake")
    env.reset(seed=1)
    other.reset(seed=1)
    with pytest.raises(UsageError):
        env.reset(options={"cart_1": {"nothing": 1}})
    env.reset()
    other.reset()
    assert env.world_reset.seed_applied == other.world_reset.seed_applied


@pytest.mark.long
def test_one_image_shows_the_whole_world(make):
    env = make(render_mode="rgb_array")
    env.reset(seed=1)
    assert env.render().shape == (480, 640, 3)


@pytest.mark.long
def test_pettingzoos_render_test_passes_with_a_window(make, monkeypatch, display):  # noqa: F811 - the fixture
    monkeypatch.setenv("DISPLAY", display)
    render_test(lambda **options: parallel_to_aec(make(**options)))


# -------------------------------------------------------------------------------------------------- usage errors


def test_a_missing_or_an_unknown_action_is_named_and_nothing_is_published(make):
    env = make(backend="fake")
    env.reset(seed=1)
    with pytest.raises(UsageError, match=r"\[\'cart_1\'\] \(expected \[\'cart_1\', \'cart_2\'\]\)"):
        env.step({"cart_1": STILL})
    with pytest.raises(UsageError, match="'cart_3'"):
        env.step({**all_do(env, STILL), "cart_3": STILL})
    assert env._shared.backend.sent == []  # the commands stored by the fake backend


def test_a_step_without_agents_is_rejected(make):
    env = make(team_with((1, 1)), backend="fake")
    env.reset(seed=1)
    env.step(all_do(env, STILL))
    with pytest.raises(ResetNeededError, match="call reset"):
        env.step({})


def test_a_step_during_which_another_thread_closes_ends_as_closed(make):
    env = make("two_carts", backend="fake")
    env.reset(seed=1)
    *_, last = env._agent_envs.values()
    backend = last.stepper.backend
    advance = backend.advance
    backend.advance = lambda *to: (advance(*to), env.close())  # all commands are sent, and nothing has been read yet
    *_, infos = env.step({name: env.action_space(name).sample() for name in env.agents})
    assert {info["end_reason"] for info in infos.values()} == {"backend_lost:closed"}


@pytest.mark.parametrize("call", [lambda env: env.reset(), lambda env: env.step({})], ids=["reset", "step"])
def test_every_call_after_close_is_rejected(make, call):
    env = make(backend="fake")
    env.close()
    env.close()
    with pytest.raises(ClosedError):
        call(env)


@pytest.mark.parametrize(
    "options",
    [{"pacing": "realtime"}, {"delay_profile": "x.json"}, {"delays": None}, {"record_messages": True}],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_robots_cannot_share_is_rejected(make, options):
    with pytest.raises(UsageError, match=f"unsupported option of parallel_env: {next(iter(options))}"):
        make(**options)


def test_a_free_running_world_is_rejected(make):
    with pytest.raises(UsageError, match="'fake'"):
        make(backend="fake", free_running=True)


def test_an_unknown_agent_is_named(make):
    with pytest.raises(UsageError, match=r"unknown agent 'cart_3'.*cart_1, cart_2"):
        make(backend="fake").observation_space("cart_3")


def test_without_pettingzoo_its_extra_is_named():
    script = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "import embodied_env\n"
        "try:\n    embodied_env.parallel_env\n"
        "except embodied_env.errors.MissingDependencyError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "embodied_env[multi]" in done.stdout


# -------------------------------------------------------------------------------------------------------- records


def test_each_robot_has_a_separate_valid_run_directory(make, tmp_path):
    env = make(team_with((3, 5)), record=tmp_path)
    env.reset(seed=1)
    while env.agents:
        env.step(all_do(env, AHEAD))
    runs = {agent: env.run_directory(agent) for agent in env.possible_agents}
    env.close()
    for agent, transitions in (("cart_1", 3), ("cart_2", 5)):
        assert len(list(embodied_env.read_run(runs[agent]).transitions())) == transitions
        assert_sound(runs[agent])
    assert {agent: run.parent.name for agent, run in runs.items()} == {"cart_1": "cart_1", "cart_2": "cart_2"}


# ----------------------------------------------------------------------------------------------------- team files


@pytest.mark.parametrize("team", TEAMS)
def test_the_contract_of_each_robot_is_its_file_with_the_changes(team):
    for contract in loaded(team).agents.values():
        assert contract.name == {"two_carts": "cart_goal", "two_arms": "arm_reach"}[team]
        assert contract.fingerprint != embodied_env.load_contract(contract.name).fingerprint


def test_names_in_the_world_are_prefixed_with_the_robot():
    world = loaded("two_carts").world
    odom, base = world.sensors["cart_2_odom"], world.actuators["cart_2_base"]
    assert (odom.topic, odom.frame, odom.child_frame) == ("cart_2/odom", "cart_2/odom", "cart_2/base_link")
    assert (base.topic, base.frame) == ("cart_2/cmd_vel", "cart_2/base_link")
    assert world.backends["mujoco"]["sources"]["cart_2_collision"]["contact"] == {
        "body": "cart_2_base",
        "ignore": ("floor",),
    }


def test_the_fingerprint_of_the_world_covers_the_contracts_of_its_robots():
    one, other = team_with((4, 4)), team_with((4, 4), extra=", task: {success_radius_m: 0.5}")
    assert one.world.fingerprint != other.world.fingerprint


def test_each_robot_has_its_own_draws_and_observes_its_own_goal():
    draws = "backends: {mujoco: {draws: {load: {mass: [base]}, late: {delay: [odom]}}}}"
    own = "bin: {type: scalar, distribution: choice, values: [1, 2, 3, 4, 5, 6, 7, 8, 9], observed: true}"
    scalars = "load: {type: scalar, low: 2, high: 3}, late: {type: scalar, low: 0.2, high: 0.2001}"
    changes = f"changes: {{reset_options: {{obstacle_phase: null, {own}, {scalars}}}, {draws}}}"
    agents = "".join(f"  cart_{n}: {{contract: cart_goal, {changes}}}\n" for n in (1, 2))
    world = "shared: [floor], mujoco: {model: two_carts.xml}"
    team = parse_team(f"team: embodied_env/1\nname: test\nagents:\n{agents}world: {{{world}}}", source="test.yaml")
    env = embodied_env.parallel_env(team, clock="virtual")
    seen = []
    for seed in range(4):
        observations, infos = env.reset(seed=seed)
        drawn = {name: float(info["reset"]["sampled"]["bin"]) for name, info in infos.items()}
        assert {name: observation["bin"].tolist() for name, observation in observations.items()} == {
            name: [value] for name, value in drawn.items()
        }
        seen.append(tuple(drawn.values()))
        assert env.world_reset.sampled.keys() >= {"cart_1_load", "cart_2_load", "cart_1_late"}
    env.close()
    assert any(one != other for one, other in seen)


def test_two_twists_are_allowed_only_in_the_world_of_a_team():
    world = loaded("two_carts").world
    with pytest.raises(ContractError, match=r"'linear.x' is also driven by actuators.cart_1_base"):
        dataclasses.replace(world, task=embodied_env.load_contract("cart_goal").task)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("team: embodied_env/2", "team: unknown schema 'embodied_env/2'"),
        ("- 1", "not a file with the key team: list"),
        ("team: embodied_env/1\nname: t\nagents: {}\nworld: {mujoco: {}}", "agents: {}"),
        ("team: embodied_env/1\nname: t\nagents: {a: {contract: nothing}}\nworld: {mujoco: {}}", "agents.a: .*nothing"),
        (
            "team: embodied_env/1\nname: t\nagents: {world: {contract: cart_goal}}\nworld: {mujoco: {}}",
            "expected another name",
        ),
        (
            "team: embodied_env/1\nname: t\nagents: {a: {contract: cart_goal, chnages: {}}}\nworld: {mujoco: {}}",
            "did you mean 'changes'",
        ),
        (
            HEAD + "agents: {a: {contract: cart_goal}, b: {contract: arm_reach}}",
            "agents.b: control_period_s: 0.05 s .expected 0.1 s",
        ),
        (
            HEAD + "agents: {a: {contract: cart_goal, changes: {episode: {horizon_steps: 0}}}}",
            "agents.a: episode.horizon_steps: 0 .expected",
        ),
        (
            HEAD.replace("{}", "{}, reset_options: {a_goal: {type: scalar, low: 0, high: 1}}")
            + "agents: {a: {contract: cart_goal}}",
            "agents.a: reset_options.goal: duplicate name 'a_goal'",
        ),
        (
            HEAD.replace("{}", "{}, reset_options: {x: {type: scalar, low: 0, high: 1, observed: true}}")
            + "agents: {a: {contract: cart_goal}}",
            "world.reset_options.x.observed: true .expected false",
        ),
        (
            HEAD + "agents: {a: {contract: cart_goal, changes: {reset_options: {x: {type: scalar, low: 0, high: 1}}, "
            "backends: {mujoco: {draws: {x: {command_delay: true}}}}}}}",
            "agents.a: backends.mujoco.draws.x.command_delay: given .expected a draw of the world",
        ),
    ],
    ids=[
        "schema",
        "list",
        "unknown agent",
        "unknown contract",
        "world",
        "unknown key",
        "period",
        "change",
        "taken",
        "observed",
        "delay",
    ],
)
def test_invalid_team_error_names_the_path(text, message):
    with pytest.raises(ContractError, match=message):
        parse_team(text, source="team.yaml")


def test_an_unknown_team_error_suggests_a_name():
    with pytest.raises(ContractError, match=r"no such team: 'two_cart' .*did you mean 'two_carts'"):
        load_team("two_cart")


def test_identified_parameters_of_a_robot_are_refused():
    text = HEAD + "agents:\n  a: {contract: cart_goal, changes: {backends: {mujoco: {identified: {file: x.yaml}}}}}\n"
    with pytest.raises(ContractError, match=r"agents\.a: backends\.mujoco\.identified: given \(expected none"):
        parse_team(text, source="t.yaml")
