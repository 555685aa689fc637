import contextlib
import itertools
import json
from collections import Counter

import numpy as np
import pytest
import ros_domains
from gazebo_server import GazeboServer

import embodied_env
from embodied_env.policies.policy_loader import load_policy

pytestmark = [pytest.mark.gazebo, pytest.mark.kills]

PARITY_STEPS = 50
PARITY = {
    "arm_reach": ("joints", "position", 0.05),
    "cart_goal": ("true_pose", "position", 0.15),
    "door_open": ("joints", "position", 0.1),
}
"""Contract -> sensor, field, and how far it may be from MuJoCo after equal actions: rad or m."""

REPEATED = {"arm_reach": 2e-3, "cart_goal": 5e-3, "door_open": 1e-2}
"""Contract -> how far the same field may differ between two episodes of one seed.

A soft reset is not exact, and on a loaded machine a command may arrive some physics steps late.
"""

BLOCKED = {"start": np.array([-3.6, 0.0, 0.0]), "goal": np.array([3.7, 0.0])}
"""Reset options of `cart_goal` with a shelf straight ahead."""

MOST_SOLVED = 2  # episodes of the scripted policy


def only(server, *names):
    if server.contract not in names:
        pytest.skip(f"needs {' or '.join(names)}")


def held(env, steps, seed):
    """Reset, hold still, and yield the account of each step, none of which may be lost."""
    policy, (observation, _) = load_policy("hold", env.unwrapped.contract), env.reset(seed=seed)
    for _ in range(steps):
        observation, *_, info = env.step(policy(observation))
        assert not info["end_reason"].startswith("backend_lost"), info["end_reason"]
        yield info


def measured(env):
    sensor, name, _ = PARITY[env.unwrapped.contract.name]
    return env.unwrapped.last_transition.snapshot.samples[sensor].values[name]


def actions_of_scripted(env, options):
    """Return the actions of the scripted policy for an episode, and what it measured after each."""
    policy, (observation, _) = load_policy("scripted", env.unwrapped.contract), env.reset(seed=1, options=options)
    actions, values = [], []
    for _ in range(PARITY_STEPS):
        actions.append(np.array(policy(observation)))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        values.append(measured(env))
        if terminated or truncated:
            break
    return actions, np.array(values)


def replayed(env, actions, options):
    env.reset(seed=1, options=options)
    values = []
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        assert not info["end_reason"].startswith("backend_lost"), info["end_reason"]
        values.append(measured(env))
        if terminated or truncated:
            break
    return np.array(values)


@pytest.fixture(scope="module")
def episode(env, reference):
    """The reset options and scripted actions of one episode, and what MuJoCo measured."""
    _, info = env.reset(seed=1)
    options: dict = {name: np.asarray(value) for name, value in info["reset"]["sampled"].items()}
    in_reference = {**options, **({"obstacle_phase": np.array(0.0)} if "start" in options else {})}
    return options, *actions_of_scripted(reference, in_reference)


def test_doctor_finds_no_fault(server, env):
    env.reset(seed=0)  # controllers become active while time passes
    done = server.run("doctor", server.contract, "--backend", "gazebo", "--json")
    failed = [check for check in json.loads(done.stdout)["checks"] if check["passed"] is False]
    assert (done.returncode, failed) == (0, [])


def test_two_hundred_steps_are_exact(env):
    stamps = [env.unwrapped.last_transition.snapshot.now_ns for _ in held(env, 200, seed=2)]
    steps = {after - before for before, after in itertools.pairwise(stamps)}
    assert (len(stamps), steps) == (200, {env.unwrapped.contract.control_period_ns})


def test_readings_without_a_rate_are_of_the_end_of_the_step(env):
    without_rate = [name for name, sensor in env.unwrapped.contract.sensors.items() if not sensor.rate_hz]
    for _ in held(env, 5, seed=2):
        snapshot = env.unwrapped.last_transition.snapshot
        assert {snapshot.samples[name].stamp_ns for name in without_rate} == {snapshot.now_ns}


def test_a_step_takes_few_messages(env):
    taken, steps = Counter(), 10
    for step, _ in enumerate(held(env, 1 + steps, seed=2)):
        if step == 0:
            env.unwrapped.feed.sink = lambda message: taken.update([message.topic] * (not message.is_ours))
    env.unwrapped.feed.sink = None
    contract = env.unwrapped.contract
    iterations = round(contract.control_period_s / contract.backends["gazebo"]["step_s"])
    assert taken["/clock"] / steps < 5 * iterations, taken  # one per iteration, and about 1 kHz while the world waits
    assert (sum(taken.values()) - taken["/clock"]) / steps < 10 * len(contract.sensors), taken


def test_a_seed_repeats_its_episode(server, env, episode):
    options, actions, _ = episode
    first, second = (replayed(env, actions, options) for _ in range(2))
    steps = min(len(first), len(second))
    assert abs(len(first) - len(second)) <= 1
    assert np.abs(first[:steps] - second[:steps]).max() <= REPEATED[server.contract]


def test_the_first_steps_match_mujoco(server, env, episode):
    options, actions, expected = episode
    found = replayed(env, actions, options)
    steps = min(len(found), len(expected))
    assert steps >= len(expected) - 3
    assert np.abs(found[:steps] - expected[:steps]).max() <= PARITY[server.contract][2]


@pytest.mark.parametrize("time", ["first", "after another reset"])
def test_a_collision_ends_the_episode_as_in_mujoco(server, env, reference, time):
    only(server, "cart_goal")
    ends = []
    for world, options in ((reference, {**BLOCKED, "obstacle_phase": np.array(0.0)}), (env, BLOCKED)):
        world.reset(seed=3, options=options)
        reasons = []
        while len(reasons) < 60 and not any(reasons):
            reasons.append(world.step(np.array([1.0, 0.0]))[-1]["end_reason"])
        ends.append((len(reasons), reasons[-1]))
    (expected, _), (found, _) = ends
    assert [reason for _, reason in ends] == ["failure:collision"] * 2, ends
    assert abs(found - expected) <= 3, ends


def test_the_wrench_at_rest_has_the_direction_of_mujoco(server, env, reference):
    only(server, "door_open")
    forces = []
    for world in (reference, env):
        for _ in held(world, 5, seed=4):
            pass
        forces.append(world.unwrapped.last_transition.snapshot.samples["wrench"].values["force"])
    expected, found = forces
    assert np.dot(expected, found) / np.linalg.norm(expected) / np.linalg.norm(found) > 0.8, forces
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=0.3)


def test_a_killed_server_ends_the_episode_and_a_new_one_continues(server, env):
    env.reset(seed=5)
    server.kill()
    *_, truncated, info = env.step(np.zeros(env.action_space.shape))
    assert (truncated, info["end_reason"].split(":")[0]) == (True, "backend_lost")
    server.start()
    assert [info["end_reason"] for info in held(env, 2, seed=5)] == ["", ""]


@pytest.mark.needs("audit", "evaluation")
def test_launch_runs_the_scripted_policy_and_leaves_no_process(server, tmp_path):
    own = GazeboServer(contract=server.contract, domain_id=ros_domains.FOR_KILLS, log=tmp_path / "launch.log")
    out = tmp_path / "runs"
    given = ["policy:=scripted", f"episodes:={MOST_SOLVED}", f"out:={out}"]
    done = own.run("launch", "gazebo", f"contract:={server.contract}", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert own.processes() == []
    (run,) = out.iterdir()
    assert json.loads((run / "summary.json").read_text())["success_rate"] == 1.0
    audit = own.run("audit", str(run))
    assert audit.returncode == 0, audit.stdout


def test_messages_of_a_dead_bridge_are_named_by_doctor(server, env):
    env.reset(seed=6)
    server.kill()
    done = server.run("doctor", server.contract, "--backend", "gazebo", "--json", "--timeout", "1")
    failed = {check["name"] for check in json.loads(done.stdout)["checks"] if check["passed"] is False}
    assert done.returncode == 1
    assert failed & {"services", "clock", "topics"}, failed
    server.start()
    env.reset(seed=6)


@pytest.mark.needs("vector")
def test_a_vector_of_two_servers_steps_both(server, tmp_path, monkeypatch):
    only(server, "arm_reach")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    domains = ros_domains.FOR_RELAY, ros_domains.FOR_DEMO
    others = [GazeboServer(contract=server.contract, domain_id=each, log=tmp_path / str(each)) for each in domains]
    for each in others:
        each.start()
    try:
        per_slot = [{"domain_id": each} for each in domains]
        options: dict = {"num_envs": 2, "backend": "gazebo", "reset_timeout_s": 90.0, "per_slot": per_slot}
        with contextlib.closing(embodied_env.make_vec(server.contract, **options)) as envs:
            envs.reset(seed=0)
            _, _, _, truncations, _ = envs.step(np.zeros((2, *envs.single_action_space.shape)))
        assert not truncations.any()
    finally:
        for each in others:
            each.stop()
