"""A base that may not reverse as fast, from the contract to the audited record of its motion."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_replays, assert_sound

import embodied_env
from embodied_env.core.code_table import CODES
from embodied_env.record import read_run

CART = embodied_env.load_contract("cart_goal")
OWN = CART.actuators["base"].joints["linear.x"]
SHARE = CART.safety.margins.velocity


def cart(velocity, scale="normalized"):
    """Return the cart with this velocity limit of its forward axis, in m/s."""
    base = CART.actuators["base"]
    joints = {**base.joints, "linear.x": replace(OWN, velocity=velocity)}
    return replace(CART, actuators={"base": replace(base, joints=joints, scale=scale)})


def drive(env, forward, steps):
    """Drive straight for some steps, and return the commanded velocities, m/s, and the last info."""
    commanded = []
    for _ in range(steps):
        *_, info = env.step(np.array([forward, 0.0], dtype=env.action_space.dtype))
        commanded.append(info["action"]["applied_si"]["linear.x"])
    return commanded, info


@pytest.mark.parametrize("backend", ["mujoco", pytest.param("fake", marks=pytest.mark.long)])
def test_a_base_reverses_at_its_own_limit_and_its_run_is_audited_and_replayed(tmp_path, backend):
    if backend == "mujoco":
        pytest.importorskip("mujoco", reason="needs the embedded simulator")
    contract = cart((-0.2, 0.8))
    with embodied_env.make(contract, backend=backend, record=tmp_path) as env:
        env.reset(seed=1)
        back, info = drive(env, -1.0, 15)
        assert back[-1] == -0.2 * SHARE
        assert info["safety"]["joints"]["linear.x"] == 0
        forth, _ = drive(env, 1.0, 25)
        assert forth[-1] == 0.8 * SHARE
        env.unwrapped.change_limits({"linear.x": replace(OWN, velocity=(0.0, 0.4))})
        slower, info = drive(env, -1.0, 25)
        assert min(slower) == slower[-1] == 0.0
        assert info["safety"]["guaranteed"]["velocity"]
    assert min(*back, *forth, *slower) >= -0.2 * SHARE
    rows = list(read_run(env.path).transitions())
    limits = rows[-1]["inner"]["external_inputs"]["limits"]
    assert (limits["velocity"][0], limits["velocity_low"][0]) == (0.4 * SHARE, 0.0)
    assert_replays(env.path)
    assert_sound(env.path)


def test_limits_that_are_equal_in_both_directions_are_recorded_as_one(tmp_path):
    with embodied_env.make(CART, backend="fake", record=tmp_path) as env:
        env.reset(seed=1)
        env.unwrapped.change_limits({"linear.x": replace(OWN, velocity=0.4)})
        drive(env, 1.0, 3)
    (*_, row) = read_run(env.path).transitions()
    names = ["joints", "position_low", "position_high", "velocity", "acceleration", "deceleration", "jerk"]
    assert list(row["inner"]["external_inputs"]["limits"]) == names


@pytest.mark.parametrize(("scale", "action"), [("normalized", -1.0), ("physical", -0.5)])
def test_a_base_that_may_not_reverse_stands_still_and_the_action_is_reported_as_clipped(scale, action):
    with embodied_env.make(cart((0.0, 0.8), scale), backend="fake") as env:
        env.reset(seed=1)
        assert env.action_space.low[0] == 0.0
        commanded, info = drive(env, action, 5)
        assert commanded == [0.0] * 5
        assert info["safety"]["joints"]["linear.x"] == CODES["box.clip"]
        forth, _ = drive(env, 1.0, 20)
        assert forth[-1] == pytest.approx(0.8 * SHARE)
        back, _ = drive(env, action, 20)
        assert (np.diff(back) <= 0.0).all()
        assert back[-1] == 0.0


@pytest.mark.needs("vector")
def test_a_batch_limits_each_direction_as_single_environments_do():
    pytest.importorskip("mujoco", reason="needs the embedded simulator")
    contract = cart((-0.2, 0.8))
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (12, 9, 2)).astype(contract.action_space.dtype)
    with closing(embodied_env.make_vec(contract, num_envs=9)) as envs:
        envs.reset(seed=list(range(9)))
        batched = [envs.step(action)[4]["action"]["applied_si"]["linear.x"] for action in actions]
    for i in (0, 8):
        with embodied_env.make(contract) as env:
            env.reset(seed=i)
            single = [env.step(action[i])[4]["action"]["applied_si"]["linear.x"] for action in actions]
        assert [values[i] for values in batched] == single
        assert min(single) < 0.0 < max(single)
