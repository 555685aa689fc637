import threading
import time

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from shipped_contracts import arm_of
from waiting import wait_for

import embodied_env
from embodied_env.errors import BackendLostError, ContractError

pytestmark = pytest.mark.realtime

RATE_HZ = 200
PATIENCE_S = 30.0


def applied_si(info):
    return np.array(list(info["action"]["applied_si"].values()))


@pytest.fixture
def sent():
    return []


@pytest.fixture
def env(sent):
    contract = arm_of({"setpoint_rate_hz": RATE_HZ}, **{"safety.watchdog.stop_steps": 1000})  # a busy machine stalls
    env = embodied_env.make(contract, backend="fake", pacing="realtime")
    send = env.unwrapped.stepper.backend.send

    def recorded(command):
        sent.append((time.monotonic_ns(), command))
        return send(command)

    env.unwrapped.stepper._arbiter._send = recorded
    yield env
    env.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("embodied_env")]


def test_the_account_of_each_step_has_the_rate_and_the_worst_gap(env):
    env.reset(seed=1)
    infos = [env.step(np.full(6, 0.2))[4] for _ in range(10)]
    counts = [info["annotations"]["setpoints"] for info in infos]
    assert {each["rate_hz"] for each in counts} == {RATE_HZ}
    assert sum(each["sent"] for each in counts) > 9  # a busy host misses some
    assert 0.8 / RATE_HZ < max(each["worst_gap_s"] for each in counts) < PATIENCE_S


def test_applied_stays_the_approved_setpoint_and_the_published_ones_lead_there(env, sent):
    env.reset(seed=1)
    for _ in range(6):
        info = env.step(np.full(6, 0.2))[4]
    applied = applied_si(info)
    for _ in range(100):  # late setpoints on a busy host leave a distance, which the steps that follow remove
        info = env.step(np.zeros(6))[4]
        if np.allclose(sent[-1][1].values, applied_si(info), rtol=0.0, atol=1e-9):
            break
    else:
        pytest.fail(f"published {sent[-1][1].values}, applied {applied_si(info)}")
    assert np.abs(applied_si(info) - applied).max() < 0.05 * 3.1
    numbers = [command.seq for _, command in sent]
    assert numbers == sorted(set(numbers))


def test_a_stalled_policy_ends_at_rest(env, sent):
    env.reset(seed=1)
    env.step(np.full(6, 1.0))
    while np.abs(sent[-1][1].report.velocity_si).max() < 0.5:
        env.step(np.full(6, 1.0))
    wait_for(lambda: not any(command.report.velocity_si.any() for _, command in sent[-3:]))  # of the watchdog
    rest = sent[-1][1].values.tolist()
    assert [command.values.tolist() for _, command in sent[-3:]] == [rest] * 3


def test_a_motion_that_a_lost_backend_interrupted_does_not_continue_after_the_reset(env, sent):
    backend = env.unwrapped.stepper.backend
    advance, reset = backend.advance, backend.reset

    def lose(*_):
        raise BackendLostError("cut", "the wire is cut")

    def slow_reset(*arguments):
        del sent[:]  # the motion has ended by now
        snapshot = reset(*arguments)
        time.sleep(4 / RATE_HZ)  # setpoints of the last episode would leave now
        return snapshot

    backend.reset = slow_reset
    env.reset(seed=1)
    for _ in range(5):
        env.step(np.full(6, 1.0))
    backend.advance = lose
    assert env.step(np.full(6, 1.0))[3]
    backend.advance = advance
    env.reset(seed=2)
    assert {command.epoch for _, command in sent} <= {1}


def test_a_run_with_setpoints_replays_equal_and_its_audit_is_sound(tmp_path):
    contract = arm_of({"setpoint_rate_hz": RATE_HZ})
    with embodied_env.make(contract, backend="fake", pacing="realtime", record=tmp_path) as env:
        env.reset(seed=1)
        for k in range(12):
            env.step(np.full(6, 0.5 if k < 6 else -0.5))
    assert_sound(env.path, warnings=["setpoints.late"])  # of a busy machine
    assert_replays(env.path)


def test_the_rate_is_part_of_the_fingerprint_only_where_it_is_declared():
    shipped = embodied_env.load_contract("arm_reach")
    assert arm_of({"setpoint_rate_hz": None}).fingerprint == shipped.fingerprint
    assert arm_of({"setpoint_rate_hz": RATE_HZ}).fingerprint != shipped.fingerprint


@pytest.mark.parametrize(
    ("actuator", "problem"),
    [
        ({"setpoint_rate_hz": 30}, "30 Hz .expected a multiple of the control rate of 20 Hz"),
        ({"setpoint_rate_hz": 20}, "20 Hz .expected a multiple of the control rate of 20 Hz, at least twice it"),
        ({"setpoint_rate_hz": 2000}, "2000 .expected at most 1000"),
        ({"setpoint_rate_hz": 100, "command": "velocity"}, "100 Hz .expected none with command: velocity"),
    ],
)
def test_a_rate_that_cannot_be_kept_is_an_error(actuator, problem):
    with pytest.raises(ContractError, match=problem):
        arm_of(actuator)
