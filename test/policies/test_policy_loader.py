"""The protocol of policies, their addresses, chunks, and one policy per slot or agent."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import install
from evidence import assert_sound
from hypothesis import given
from hypothesis import strategies as st
from repeating_stage import RepeatingStage
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import (
    BatchPolicy,
    FunctionPolicy,
    NoAction,
    Policy,
    PolicyIdentity,
    as_policy,
    find_required_sensors,
    policy_errors,
    policy_seed,
)
from embodied_env.errors import PolicyError, UsageError
from embodied_env.plugins.plugin_table import BUILT_IN
from embodied_env.policies import policy_loader as loader
from embodied_env.policies.chunk_execution import ChunkRunner, split_chunk
from embodied_env.policies.per_slot_policies import TeamPolicies, VectorPolicies
from embodied_env.policies.policy_file import SUFFIX, read_policy_file
from embodied_env.policies.policy_loader import parse_address, parse_server
from embodied_env.processes.signals import Terminated, terminate
from embodied_env.record.run import Run, read_run

ARM = changed_contract(embodied_env.load_contract("arm_reach"), {"episode.horizon_steps": 5})


class Chunks:
    """Return chunks of three, where action i of inference k has the value 0.1 k + 0.01 i."""

    identity = PolicyIdentity(name="chunks", format="python", library="test 1")
    calls: list

    def __init__(self, size=6):
        self.calls, self.size, self.inferences = [], size, 0

    def reset(self, *, seed, episode_index):
        self.calls.append(("reset", seed, episode_index))
        self.inferences = 0

    def __call__(self, observation):
        self.calls.append("act")
        self.inferences += 1
        return np.array([np.full(self.size, 0.1 * self.inferences + 0.01 * i) for i in range(3)])

    def close(self):
        self.calls.append("close")


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "a_users_policies.py"
    path.write_text(
        "import numpy as np\n"
        "def leave():\n    raise SystemExit(0)\n"
        "def still(observation):\n    return np.zeros(6)\n"
        "class Gain:\n"
        "    def __init__(self, gain, *, joints=6):\n        self.action = np.full(joints, gain)\n"
        "    def __call__(self, observation):\n        return self.action\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return path


def load(address, **options):
    return embodied_env.load_policy(address, ARM, **options)


def test_callable_of_a_module_is_a_policy_with_the_hash_of_its_source(module):
    policy = load("a_users_policies:still")
    assert isinstance(policy, Policy)
    assert policy.identity.name == "a_users_policies:still"
    assert policy.identity.sha256 == hashlib.sha256(module.read_bytes()).hexdigest()
    np.testing.assert_array_equal(policy({}), np.zeros(6))


def test_factory_gets_literals(module):
    np.testing.assert_array_equal(load("a_users_policies:Gain(0.5, joints=2)")({}), [0.5, 0.5])


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("a_users_policies:Gain", "policy 'a_users_policies:Gain' is a class"),
        ("a_users_policies:Gain(__import__('os'))", "literals"),
        ("a_users_policies:Gain(*[1])", "literals"),
        ("a_users_policies:Gain(**{'gain': 1})", "literals"),
        ("a_users_policies:still.nothing", "literals"),
        ("a_users_policies:Gain()", "cannot be made: TypeError"),
        ("a_users_policies:leave()", "cannot be made: SystemExit"),
        ("a_users_policies:np", "not callable"),
        ("hold ", "did you mean 'hold'"),
        ("nothing", "expected one of: hold, random, scripted, module:callable"),
        ("models/a.onnx", "did you mean 'onnx:models/a.onnx'?"),
        ("sac.zip", "did you mean 'sb3:sac.zip'?"),
        ("a.policy.yaml", "a policy file goes with the address of its model"),
        ("ws://gpu:8000", "did you mean 'openpi://gpu:8000'?"),
        ("a_users_policies.py:Gain(1)", "did you mean 'a_users_policies:Gain(1)'?"),
        ("onnx:", "incomplete policy address 'onnx:' (expected onnx:FILE)"),
        ("scripted?backend=mujocco", "unknown backend of the policy scripted: 'mujocco' (expected one of: "),
        ("scripted?backend=mujocco", "did you mean 'mujoco'?"),
        ("scripted?backend=", "unknown backend of the policy scripted: ''"),
        ("scripted?backend=3", "unknown backend of the policy scripted: 3"),
        ("sb3:a.zip?deterministic=false", "invalid deterministic='false' (expected True or False)"),
        ("lerobot:a?device=0", "invalid device=0 (expected the name of a torch device"),
    ],
)
def test_invalid_address_is_wrong_usage(module, address, problem):
    with pytest.raises(UsageError) as found:
        load(address)
    assert problem in str(found.value)


def test_unknown_option_is_wrong_usage(module):
    for address in ("hold", "a_users_policies:still"):
        with pytest.raises(UsageError, match=r"unknown option of the policy .*'speed'"):
            load(address, speed=3)


PARTY = """
import numpy as np
def load(location, contract, *, trust):
    assert trust
    return lambda _: np.full(6, float(location))
def still(contract):
    return np.zeros_like
"""


def test_policy_of_another_package_is_found_by_its_entry_point(monkeypatch, tmp_path):
    points = {"policies": {"fixed": "a_policy_party:load", "still": "a_policy_party:still"}}
    install(monkeypatch, tmp_path, points, a_policy_party=PARTY)
    policy = load("fixed:0.25", trust=True)
    assert policy({})[0] == 0.25
    assert policy.identity == PolicyIdentity(name="fixed:0.25", format="fixed")
    assert load("still").identity == PolicyIdentity(name="still", format="still")


def test_random_is_seeded_by_reset():
    policy, drawn = load("random"), []
    for seed in (3, 4, 3):
        policy.reset(seed=seed, episode_index=0)
        drawn.append(policy({}).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_callable_gets_its_prompt_and_keeps_its_required_sensors():
    class Follower:
        required_sensors = ("joints",)

        def __init__(self):
            self.prompts = []

        def instruct(self, instruction):
            self.prompts.append(instruction)

        def __call__(self, observation):
            return np.zeros(6)

    policy: Any = as_policy(follower := Follower())
    assert policy.instruct("wave")
    assert (follower.prompts, find_required_sensors(policy)) == (["wave"], ("joints",))
    plain: Any = as_policy(lambda _: np.zeros(6))
    assert (plain.instruct("wave"), find_required_sensors(plain)) == (False, ())


def test_a_policy_is_itself_and_a_callable_is_wrapped():
    policy = Chunks()
    assert as_policy(policy) is policy
    assert isinstance(as_policy(np.zeros_like), FunctionPolicy)
    with pytest.raises(UsageError, match="not callable: 3"):
        as_policy(3)
    policy.identity = "chunks"
    with pytest.raises(UsageError, match="has the identity 'chunks'"):
        as_policy(policy)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("a\n b", "a b"), ("", "no reason given"), ("\x1b[2J\ud800", "?[2J?"), ("x" * 199 + " y", "x" * 199)],
)
def test_a_reason_is_one_printable_line(reason, expected):
    assert NoAction(reason).reason == expected
    assert NoAction(expected) == NoAction(reason)  # a replay makes it from the record


@pytest.mark.parametrize(
    "answer",
    [
        *(
            np.zeros(6),
            [0.0] * 6,
            np.zeros((0, 6)),
            np.zeros((1, 2, 3)),
            [[1.0], [1.0, 2.0]],
            None,
            NoAction("late"),
            {},
        ),
        {"arm": np.zeros((2, 3)), "hand": np.zeros((3, 1))},
        {"arm": np.zeros((2, 3)), "hand": np.zeros(1)},
    ],
)
def test_what_is_no_chunk_is_passed_on(answer):
    assert split_chunk(answer) is None
    assert ChunkRunner(as_policy(lambda _: answer))({}) is answer


class Fabricated:
    """Claims a shape."""

    def __init__(self, count):
        self.shape = (count, 6)

    def __getitem__(self, index):
        raise RuntimeError("no rows")


@pytest.mark.parametrize("count", [-3, 2, 10**12])
def test_a_chunk_of_a_fabricated_shape_is_none_or_too_long(count):
    if count > 2:
        with pytest.raises(PolicyError, match=r"chunk too long: 1000000000000 actions \(expected at most 100000\)"):
            split_chunk(Fabricated(count))
    else:
        assert split_chunk(Fabricated(count)) is None


def test_a_chunk_of_several_actuators_is_split():
    chunk = split_chunk({"arm": np.array([[1.0, 2.0], [3.0, 4.0]]), "hand": [[5.0], [6.0]]})
    assert [(each["arm"].tolist(), each["hand"]) for each in chunk] == [([1.0, 2.0], [5.0]), ([3.0, 4.0], [6.0])]


@pytest.mark.needs("evaluation", "replay")
def test_a_chunk_ends_with_its_episode_in_an_evaluation(tmp_path, monkeypatch):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.replay.run_replay import replay_policy

    made = Chunks()
    monkeypatch.setattr(loader, "made_for_test", lambda contract: made, raising=False)  # noqa: ARG005 - of a factory
    monkeypatch.setitem(BUILT_IN["policies"], "chunks", "embodied_env.policies.policy_loader:made_for_test")
    options = {"backend": "fake", "episodes": 2, "seed": 7, "record": tmp_path, "clock": "virtual"}
    (done,) = evaluate(ARM, "chunks", **options).results
    first, second = [("reset", policy_seed(7, index), index) for index in range(2)]
    assert made.calls == [first, "act", "act", second, "act", "act", "close"]  # 5 steps: 3 + 2
    actions = [row["action"][0] for row in embodied_env.read_run(done.path).transitions()]
    assert actions == pytest.approx([0.1, 0.11, 0.12, 0.2, 0.21] * 2)
    manifest = json.loads((done.path / "manifest.json").read_text())
    known = {"name": "chunks", "format": "python", "library": "test 1"}
    assert {key: value for key, value in manifest["policy"].items() if value is not None} == known
    again = Chunks()
    assert replay_policy(done.path, again, seed=7).first is None  # chunks end there too
    assert again.calls == made.calls[:-1]


@pytest.mark.needs("evaluation")
def test_random_draws_from_the_space_of_an_action_stage(tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    options = {"backend": "fake", "episodes": 1, "record": tmp_path, "action_stages": [RepeatingStage()]}
    path = evaluate(ARM, "random", **options).results[0].path
    row = next(read_run(path).transitions())
    assert np.shape(row["action"]) == (2,)
    assert row["inner"]["report"]["requested"] == np.repeat(row["action"], 3).tolist()


@pytest.mark.needs("evaluation", "replay")
def test_replay_of_the_same_seed_repeats_a_random_policy(tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.replay.run_replay import replay_policy

    options = {"backend": "fake", "episodes": 2, "record": tmp_path, "clock": "virtual"}
    run = evaluate(ARM, "random", seed=7, **options).results[0].path
    assert replay_policy(run, load("random"), seed=7).first is None
    assert replay_policy(run, load("random"), seed=8).first == (1, 1)


@pytest.mark.needs("evaluation", "replay")
def test_replay_of_a_policy_skips_what_follows_a_missing_row(tmp_path, monkeypatch):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.replay.run_replay import replay_policy

    def act(_observation):
        return NoAction("late")

    done = evaluate(ARM, act, backend="fake", episodes=2, record=tmp_path, clock="virtual")
    run = done.results[0].path
    whole = replay_policy(run, act)
    assert [(each.steps, each.first, each.unreadable) for each in whole.episodes] == [(5, None, 0)] * 2
    rows = Run.rows
    monkeypatch.setattr(Run, "rows", lambda run: (row for row in rows(run) if row["row"] not in (3, 6)))
    assert [(each.steps, each.first) for each in replay_policy(run, act).episodes] == [(2, None)]


@pytest.mark.needs("evaluation")
@pytest.mark.parametrize("place", ["reset", "__call__", "close"])
def test_exit_in_a_policy_is_not_the_exit_of_the_program(tmp_path, monkeypatch, place):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    def leave(*_, **__):
        raise SystemExit(0)

    monkeypatch.setattr(Chunks, place, leave)
    monkeypatch.setattr(loader, "_imported", lambda *_, **__: Chunks())
    where = {"reset": "the reset of episode 1", "__call__": "episode 1, step 1", "close": "close"}[place]
    with pytest.raises(PolicyError, match=rf"policy 'a:b' failed in {where}: SystemExit: 0"):
        evaluate(ARM, "a:b", backend="fake", episodes=1, record=tmp_path, clock="virtual")
    with pytest.raises(Terminated), policy_errors("policy", "step 1"):
        terminate(15, None)


@pytest.mark.needs("evaluation", "replay")
def test_replay_names_a_policy_that_raises(tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.replay.run_replay import replay_policy

    run = evaluate(ARM, "hold", backend="fake", episodes=1, seed=0, record=tmp_path).results[0].path
    with pytest.raises(PolicyError, match="episode 1, step 1: ZeroDivisionError"):
        replay_policy(run, lambda _: 1 / 0)


@pytest.mark.needs("vector")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_each_slot_has_a_policy_that_is_reset_before_each_of_its_episodes(mode):
    made = []

    def make(slot):
        made.append(Chunks())
        return made[slot]

    envs = embodied_env.make_vec(ARM, num_envs=2, backend="fake", autoreset_mode=mode, clock="virtual")
    with_policies = VectorPolicies(make, 2, seed=3)
    results = envs.reset(seed=3)
    for _ in range(8):
        observations, *_, infos = envs.step(with_policies.act_all(*results))
        results = observations, infos
    with_policies.close()
    envs.close()
    episodes = [[call for call in policy.calls if call[0] == "reset"] for policy in made]
    for slot in range(2):
        assert episodes[slot] == [("reset", policy_seed(3 + slot, index), index) for index in range(2)]
        second = made[slot].calls.index(episodes[slot][1])
        assert made[slot].calls[:second] == [episodes[slot][0], "act", "act"]  # no inference after the end
        assert made[slot].calls[-1] == "close"


@pytest.mark.needs("vector")
def test_slots_share_the_inference_of_a_batch_policy():
    masks = []

    class Batch(Chunks):
        def act_batch(self, observations, mask):
            masks.append(mask.tolist())
            return [self(None) for _ in mask]

    assert isinstance(Batch(), BatchPolicy)
    envs = embodied_env.make_vec(ARM, num_envs=2, backend="fake", clock="virtual")
    with_policies = VectorPolicies(lambda _: Batch(), 2)
    results = envs.reset(seed=3)
    for _ in range(4):
        observations, *_, infos = envs.step(with_policies.act_all(*results))
        results = observations, infos
    envs.close()
    assert masks == [[True, True]] * 2


def test_slots_with_different_prompts_share_no_inference():
    class Batch(Chunks):
        def act_batch(self, observations, mask):
            raise AssertionError

        def instruct(self, instruction):
            self.calls.append(instruction)

    made = [Batch(), Batch()]
    with_policies = VectorPolicies(made.__getitem__, 2)
    infos = {key: np.zeros(2, dtype=np.int64) for key in ("step_index", "episode_index")}
    infos |= {"end_reason": np.array(["", ""]), "_step_index": np.ones(2, dtype=np.bool_)}
    with_policies.act_all({}, infos | {"instruction": np.array(["wave", "rest"], dtype=object)})
    assert [policy.calls[1:] for policy in made] == [["wave", "act"], ["rest", "act"]]


def test_slots_with_different_policies_share_no_inference():
    class Batch(Chunks):
        def act_batch(self, observations, mask):
            return [np.zeros(6)]

    made = [Batch(), Batch()]
    with pytest.raises(PolicyError, match=r"1 answers \(expected 2, one per slot\)"):
        VectorPolicies(made.__getitem__, 2).act_all({}, {})
    made[1].identity = PolicyIdentity(name="other", format="python")
    with_policies = VectorPolicies(made.__getitem__, 2)
    assert len(with_policies.act_all({}, {})) == 2


def test_all_policies_are_closed_after_an_error():
    made = [Chunks(), Chunks()]
    with pytest.raises(IndexError):
        VectorPolicies(made.__getitem__, 3)
    made[1].close = lambda: 1 / 0
    with_policies = VectorPolicies(made.__getitem__, 2)
    with pytest.raises(ZeroDivisionError):
        with_policies.close()
    with_policies.close()
    assert made[0].calls == ["close", "close"]


def test_an_agent_whose_episode_has_ended_does_not_act():
    policies = TeamPolicies(lambda _: Chunks(), ["a", "b"])
    infos = {
        "a": {"step_index": 0, "episode_index": 0, "end_reason": ""},
        "b": {"step_index": 3, "end_reason": "success"},
    }
    assert list(policies.act({"a": {}, "b": {}}, infos)) == ["a"]


@pytest.mark.needs("teams")
def test_each_agent_of_a_team_has_a_policy_of_its_own():
    team = embodied_env.parallel_env("two_carts", backend="mujoco", clock="virtual")
    sizes = {agent: ActionLayout(team.contract(agent)).size for agent in team.possible_agents}
    made = {agent: Chunks(size) for agent, size in sizes.items()}
    policies = TeamPolicies(made.__getitem__, team.possible_agents, seed=1)
    for _ in range(2):
        observations, infos = team.reset()
        for _ in range(2):
            observations, *_, infos = team.step(policies.act(observations, infos))
    policies.close()
    team.close()
    for number, policy in enumerate(made.values()):
        first, second = [("reset", policy_seed(1 + number, index), index) for index in range(2)]
        assert policy.calls == [first, "act", second, "act", "close"]


# ------------------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("address", "name", "location", "part", "options"),
    [
        ("hold", "hold", None, None, {}),
        ("scripted?backend=mujoco", "scripted", None, None, {"backend": "mujoco"}),
        ("onnx:reach.onnx?threads=2", "onnx", "reach.onnx", None, {"threads": 2}),
        ("onnx:models/#3/what?.onnx", "onnx", "models/#3/what?.onnx", None, {}),
        ("onnx:a b (1)/x.onnx?threads=2", "onnx", "a b (1)/x.onnx", None, {"threads": 2}),
        ("lerobot:user/act@main", "lerobot", "user/act@main", None, {}),
        ("openpi://h:8000?timeout_s=0.2&nested=True", "openpi", "//h:8000", None, {"timeout_s": 0.2, "nested": True}),
        ("openpi://h/path?rtc=", "openpi", "//h/path", None, {"rtc": ""}),
        ("gr00t://[::1]:5555?release=n1.5", "gr00t", "//[::1]:5555", None, {"release": "n1.5"}),
        ("run:runs/x", "run", "runs/x", None, {}),
        ("run:runs/x#2?actions=applied", "run", "runs/x", "2", {"actions": "applied"}),
        ("run:runs/a#b#12", "run", "runs/a#b", "12", {}),
        ("run:x?actions=a%26b%3D1", "run", "x", None, {"actions": "a&b=1"}),
        ("my.policies:act", "my.policies", "act", None, {}),
        ("mine:make('a?b=c#d', 3)", "mine", "make('a?b=c#d', 3)", None, {}),
        ("mine:make(3)?gain=1", "mine", "make(3)", None, {"gain": 1}),
        ("reach#1.onnx", "reach#1.onnx", None, None, {}),
        ("", "", None, None, {}),
    ],
)
def test_the_parts_of_an_address(address, name, location, part, options):
    parsed = parse_address(address)
    assert (parsed.name, parsed.location, parsed.part, parsed.options) == (name, location, part, options)
    assert parsed.text == address


@pytest.mark.parametrize("address", [Path("reach.onnx"), print, None])
def test_an_address_is_text(address):
    with pytest.raises(UsageError, match=r"invalid policy address .* \(expected text, such as 'onnx:FILE'\)"):
        parse_address(address)


TEXT = st.text(st.characters(codec="ascii", exclude_characters="?#()"), min_size=1)
KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda key: not key.startswith(("api", "trust")))


@given(location=TEXT, number=st.integers(0, 999), options=st.dictionaries(KEYS, st.integers() | st.booleans()))
def test_an_address_has_the_parts_that_it_was_made_of(location, number, options):
    query = "&".join(f"{key}={value}" for key, value in options.items())
    parsed = parse_address(f"run:{location}#{number}" + (f"?{query}" if query else ""))
    assert (parsed.name, parsed.location, parsed.part) == ("run", location, str(number))
    assert parsed.options == options


@given(st.text())
def test_any_text_has_parts_or_is_refused(text):
    try:
        parsed = parse_address(text)
    except UsageError:
        return
    assert text.startswith(parsed.name)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("sb3:a.zip?trust=1", "'trust'; pass it as an argument"),
        ("openpi://h:1?api_key=secret", "'api_key'; pass it"),
        ("gr00t://h:1?api_token=secret", "'api_token'; pass it"),
        ("onnx:a?threads=1&threads=2", "option 'threads' given twice"),
    ],
)
def test_an_option_that_an_address_may_not_have_is_refused(address, problem):
    with pytest.raises(UsageError, match=problem) as refused:
        parse_address(address)
    assert "secret" not in str(refused.value)


def test_a_server_has_a_host_and_a_port():
    assert parse_server("openpi://h:1", 8000) == ("h", 1)
    assert parse_server("openpi://[::1]", 8000) == ("::1", 8000)


@pytest.mark.parametrize("address", ["openpi:h", "openpi://", "openpi://h/path", "openpi://h?x", "openpi://h#x"])
def test_another_form_of_a_server_is_refused(address):
    with pytest.raises(UsageError, match="invalid address of a policy server"):
        parse_server(address, 8000)


# --------------------------------------------------------------------------------------------------- the shipped policy


pytest.importorskip("onnxruntime")
NAMES = sorted(shipped_files("policies", ".onnx"))


@pytest.mark.parametrize("name", NAMES)
def test_shipped_policy_is_small_and_of_the_present_contract(name):
    file = shipped_files("policies", ".onnx")[name]
    assert file.stat().st_size < 200_000
    policy_file = read_policy_file(file.with_name(f"{name}{SUFFIX}"))
    assert policy_file.contract is not None
    contract = embodied_env.load_contract(policy_file.contract.name)
    assert policy_file.difference(contract) == ""


@pytest.mark.needs("evaluation")
def test_learned_policy_of_the_arm_solves_its_task(tmp_path):
    contract = embodied_env.load_contract("arm_reach")
    (done,) = embodied_env.evaluate(contract, "onnx:arm_reach", episodes=5, record=tmp_path).results
    assert done.summary["success_rate"] == 1.0
    assert_sound(done.path)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["policy"]["name"] == "onnx:arm_reach"


def test_unknown_name_lists_the_shipped_policies():
    expected = r"unknown ONNX policy: 'arm_reech' \(expected a file, or one of: .*arm_reach.*did you mean 'arm_reach'"
    with pytest.raises(UsageError, match=expected):
        embodied_env.load_policy("onnx:arm_reech", embodied_env.load_contract("arm_reach"))
