"""The same world in process and over ROS 2 gives bit-identical results."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from hosted_simulator import hosted_simulator
from identified_arm import identified_arm
from own_models import own_contract
from randomised_arm import OPTIONS, randomised_arm
from sideways_base import sideways_base
from unit_contracts import driver_units_contract

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.timing.delay_model import DelayDistribution, DelayModel

pytestmark = pytest.mark.ros


CONTRACTS = ("arm_reach", "cart_goal", "door_open")
STEPS = {"arm_reach": 60, "cart_goal": 40, "door_open": 20, "so101_reach": 20, "turtlebot4_goal": 20, "ur5e_reach": 20}


@pytest.fixture(scope="module", params=CONTRACTS)
def pair(request, lasting):
    """Return the two environments of a contract, both with the same history."""

    def make(**options):
        return embodied_env.make(request.param, evaluator_info=True, render_mode="rgb_array", **options)

    here = make(backend="mujoco")
    here.reset(seed=0)
    yield here, lasting(make, backend="mujoco_ros", step_timeout_s=60.0)
    here.close()


def contract_of(pair):
    return pair[0].unwrapped.contract


def account(transition):
    """Return what must be equal, which is everything except times of this machine's clocks."""
    report = transition.report
    return (
        {key: value.tobytes() for key, value in transition.observation.items()},
        transition.reward,
        transition.terminated,
        transition.truncated,
        transition.end_reasons,
        report.disposition,
        report.intervened,
        [(f.gate, f.severity, f.code, f.joints, f.detail) for f in report.findings],
        [None if f.before is None else (f.before.tobytes(), f.after.tobytes()) for f in report.findings],
        report.requested.tobytes(),
        report.applied.tobytes(),
        report.applied_si.tobytes(),
        report.dt_s,
        transition.info["safety"]["severity"].tobytes(),
        transition.info["safety"]["code"].tobytes(),
        transition.info["action"]["applied_si"],
        transition.info["action"].get("applied_driver"),
        {(n, f): v.tobytes() for n, s in transition.snapshot.samples.items() for f, v in s.driver.items()},
        transition.info["task"],
        transition.info["episode_index"],
        transition.info["step_index"],
        {
            name: (sensor["stamp_ns"], sensor["seq"], sensor["quality"], sensor.get("confidence"))
            for name, sensor in transition.info["sensors"].items()
        },
        {
            (name, field): values.tobytes()
            for name, truth in transition.info["evaluator"].items()
            for field, values in truth.items()
        },
        transition.info["latency"]["quality"].get("injected"),
        transition.info["latency"].get("injected"),
    )


def run(env, actions):
    accounts = []
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        accounts.append(account(env.unwrapped.last_transition))
        if terminated or truncated:
            env.reset()
    return accounts


@pytest.mark.parametrize(
    "pair",
    [
        *CONTRACTS,
        "turtlebot4_goal",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("so101_reach", "ur5e_reach")),
    ],
    indirect=True,
)
def test_random_actions_are_bit_identical(pair):
    steps = STEPS[contract_of(pair).name]
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1.3, 1.3, size=(steps, *pair[0].action_space.shape))
    actions[steps // 5 : steps // 5 + 2] = np.nan
    results = []
    for env in pair:
        env.reset(seed=17)
        results.append(run(env, actions))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "pair",
    ["arm_reach", *(pytest.param(name, marks=pytest.mark.long) for name in ("cart_goal", "door_open"))],
    indirect=True,
)
def test_scripted_episodes_to_success_are_bit_identical(pair):
    results = [[scripted(env, seed) for seed in range(2)] for env in pair]
    assert {end for episodes_of_one in results for _, end in episodes_of_one} == {"success"}
    assert results[0] == results[1]


@pytest.mark.parametrize("pair", ["cart_goal", "door_open"], indirect=True)
def test_the_first_steps_of_a_scripted_episode_are_bit_identical(pair):
    results = [scripted(env, 0, most_steps=10) for env in pair]
    assert len(results[0][0]) == 10
    assert results[0] == results[1]


def scripted(env, seed, *, most_steps=None):
    """Return the results of a scripted episode, and its end reason."""
    contract = env.unwrapped.contract
    policy = embodied_env.load_policy("scripted", contract)
    observation, info = env.reset(seed=seed)
    accounts, ended = [], False
    while not ended and len(accounts) != most_steps:
        observation, _, terminated, truncated, info = env.step(policy(observation))
        accounts.append(account(env.unwrapped.last_transition))
        ended = terminated or truncated
    return accounts, info["end_reason"]


@pytest.mark.parametrize(
    "pair",
    ["arm_reach", *(pytest.param(name, marks=pytest.mark.long) for name in ("cart_goal", "door_open"))],
    indirect=True,
)
def test_the_rendered_image_is_bit_identical(pair):
    pictures = []
    for env in pair:
        env.reset(seed=2)
        env.step(env.unwrapped.contract.action_space.sample() * 0.0)
        pictures.append(env.render())
    assert pictures[0].dtype == np.uint8
    assert pictures[0].tobytes() == pictures[1].tobytes()


def test_three_resets_in_a_row_without_a_seed_are_bit_identical(pair):
    results = []
    for env in pair:
        env.reset(seed=5)
        readings = []
        for _ in range(3):
            observation, info = env.reset()
            readings.append(
                (
                    {key: value.tobytes() for key, value in observation.items()},
                    info["reset"]["seed_applied"],
                    {name: value.tobytes() for name, value in info["reset"]["sampled"].items()},
                )
            )
        results.append(readings)
    assert results[0] == results[1]
    assert len({seed for _, seed, _ in results[0]}) == 3


def in_both(contract, seeds, steps, over_ros=hosted_simulator, **options):
    """Return the drawn values and the accounts of random actions, in process and over ROS 2."""
    drawn, accounts = [], []
    for make in (embodied_env.make, over_ros):
        with make(contract, evaluator_info=True, **options) as env:
            drawn.append([])
            accounts.append([])
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                sampled = env.reset(seed=seed)[1]["reset"]["sampled"]
                drawn[-1].append({name: value.tobytes() for name, value in sampled.items()})
                accounts[-1] += run(env, [drawn_action(env.action_space, rng) for _ in range(steps)])
    return drawn, accounts


def drawn_action(space, rng):
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: drawn_action(part, rng) for name, part in space.items()}
    return rng.uniform(-0.5, 0.5, space.shape)


def in_a_process(contract, **options):
    return embodied_env.make(contract, backend="mujoco_ros", step_timeout_s=60.0, **options)


def test_a_base_that_moves_sideways_is_bit_identical():
    _, accounts = in_both(sideways_base(), 1, 30)
    assert len(accounts[0]) == 30
    assert accounts[0] == accounts[1]


def test_units_of_a_driver_are_bit_identical():
    _, accounts = in_both(driver_units_contract(), 1, 20)
    assert accounts[0] == accounts[1]


@pytest.mark.parametrize(
    "kind", ["hand_eye", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("arm", "motors", "base"))]
)
def test_a_user_model_is_bit_identical(kind, tmp_path):
    _, accounts = in_both(own_contract(kind, tmp_path), 2, 10, in_a_process)
    assert accounts[0] == accounts[1]


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_randomised_episodes_are_bit_identical(seeds):
    drawn, accounts = in_both(randomised_arm(), seeds, 15)
    assert drawn[0][0].keys() == {*OPTIONS, "target"}
    assert drawn[0] == drawn[1]
    assert accounts[0] == accounts[1]


def test_drawn_identified_parameters_are_bit_identical(tmp_path):
    drawn, accounts = in_both(identified_arm(tmp_path, draw="intervals"), 2, 6)
    assert drawn[0][0].keys() == {"identified", "target"}
    assert drawn[0] == drawn[1]
    assert accounts[0] == accounts[1]


def delays(contract):
    seen = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    return DelayModel(
        sensors={
            name: DelayDistribution(kind="lognormal", values=(0.02 + 0.01 * i, 0.4)) for i, name in enumerate(seen)
        },
        inference=DelayDistribution(kind="empirical", values=(0.003, 0.011)),
        actuation=DelayDistribution(kind="lognormal", values=(0.06, 0.3)),
    )


@pytest.mark.parametrize(
    "name", ["arm_reach", *(pytest.param(name, marks=pytest.mark.long) for name in ("cart_goal", "door_open"))]
)
def test_injected_delays_are_bit_identical(name):
    contract = embodied_env.load_contract(name)
    _, accounts = in_both(contract, 2, 40, in_a_process, delay_profile=delays(contract))
    assert accounts[0] == accounts[1]
    assert len({injected["age_s"]["joints" if name != "cart_goal" else "odom"] for *_, injected in accounts[0]}) > 10


def test_delays_are_rejected_for_an_attached_simulator():
    contract = embodied_env.load_contract("arm_reach")
    with pytest.raises(UsageError, match="spawn=True"):
        embodied_env.make(contract, backend="mujoco_ros", spawn=False, delay_profile=delays(contract))
