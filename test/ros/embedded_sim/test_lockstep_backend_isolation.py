"""Only a step token advances a lockstep world."""

import array
import hashlib
import subprocess
import sys

import numpy as np
import pytest
from held_executor import FLAT_KB, grown_kb, held, more, resident_kb
from hosted_simulator import foreign_node_of

import embodied_env
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.byte_layout import from_cdr
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.simulator_protocol import STEP_TOPIC, StepRequest

pytestmark = pytest.mark.ros

PATIENCE_S = 60.0
ACTIONS = np.random.default_rng(3).uniform(-1, 1, size=(25, 6))


def readings(env, *, seed, actions=ACTIONS, between=lambda: None):
    observation, _ = env.reset(seed=seed)
    rows = [observation]
    for action in actions:
        rows.append(env.step(action)[0])
        between()
    return [{key: value.tobytes() for key, value in row.items()} for row in rows]


@pytest.fixture(scope="module")
def reference():
    env = embodied_env.make("arm_reach", backend="mujoco")
    yield lambda seed: readings(env, seed=seed)
    env.close()


@pytest.fixture(scope="module")
def env(lasting):
    """A simulator shared by all tests, each of which resets it."""
    return lasting(embodied_env.make, contract="arm_reach", backend="mujoco_ros", step_timeout_s=PATIENCE_S)


@pytest.fixture
def foreign_node(env):
    """A second node in the simulator's namespace."""
    env.reset(seed=0)
    with foreign_node_of(env) as other:
        yield other


def test_two_concurrent_processes_are_isolated(env, reference):
    script = (
        "import embodied_env, numpy as np, sys, hashlib\n"
        "env = embodied_env.make('arm_reach', backend='mujoco_ros')\n"
        "o, _ = env.reset(seed=0)\n"
        "print('reset', flush=True)\n"
        "h = hashlib.sha256(b''.join(o[k].tobytes() for k in sorted(o)))\n"
        "for a in np.random.default_rng(3).uniform(-1, 1, size=(25, 6)):\n"
        "    sys.stdin.readline()\n"
        "    o = env.step(a)[0]\n"
        "    h.update(b''.join(o[k].tobytes() for k in sorted(o)))\n"
        "env.close()\n"
        "print(h.hexdigest())\n"
    )
    pushed = [
        "--ros-args",
        "-r",
        "__ns:=/pushed",
    ]  # a namespace of a launch file does not separate it from its simulator
    command, piped = [sys.executable, "-c", script, *pushed], subprocess.PIPE
    with subprocess.Popen(command, stdin=piped, stdout=piped, text=True) as other:
        assert other.stdout.readline() == "reset\n"

        def step_other():
            other.stdin.write("\n")
            other.stdin.flush()

        assert readings(env, seed=1, between=step_other) == reference(1)
        found = other.communicate(timeout=120)[0].strip()
    wanted = hashlib.sha256(b"".join(row[key] for row in reference(0) for key in sorted(row)))
    assert found == wanted.hexdigest()


def publish_command(foreign_node, positions):
    publisher = foreign_node.node.create_publisher(
        message_class("std_msgs/msg/Float64MultiArray"), "arm_controller/commands", RELIABLE
    )
    assert foreign_node.wait_until(lambda: publisher.get_subscription_count() > 0, PATIENCE_S)
    return lambda: publisher.publish(publisher.msg_type(data=array.array("d", positions)))


def test_foreign_commands_cause_no_steps_and_change_none(env, foreign_node, reference):
    publish = publish_command(foreign_node, [0.5] * 6)
    rows = readings(env, seed=2, between=lambda: [publish() for _ in range(5)])
    assert rows == reference(2)


def test_overflow_of_foreign_commands_does_not_stop_the_world(env, foreign_node, reference):
    publish = publish_command(foreign_node, [0.5] * 6)
    rows = readings(env, seed=2, between=lambda: [publish() for _ in range(100)])
    assert rows == reference(2)


def test_duplicate_commands_cause_no_step(env, reference):
    env.reset(seed=4)
    backend = env.unwrapped.stepper.backend
    rows = readings(env, seed=4, between=lambda: [backend._publish_again() for _ in range(3)])
    assert rows == reference(4)


def last_token(backend, tokens):
    return StepRequest.from_data(from_cdr(backend._token, tokens.msg_type).data)


@pytest.mark.parametrize(("epochs", "is_old"), [(0, True), (1, False)], ids=["old step", "foreign epoch"])
def test_token_of_an_old_step_or_a_foreign_epoch_causes_no_step(env, foreign_node, reference, epochs, is_old):
    backend = env.unwrapped.stepper.backend
    tokens = foreign_node.node.create_publisher(message_class("std_msgs/msg/Int64MultiArray"), STEP_TOPIC, RELIABLE)
    assert foreign_node.wait_until(lambda: tokens.get_subscription_count() > 0, PATIENCE_S)

    def intrude():
        last = last_token(backend, tokens)
        foreign = StepRequest(epoch=last.epoch + epochs, step=1 if is_old else last.step + 1, digests=last.digests)
        tokens.publish(tokens.msg_type(data=array.array("q", foreign.to_data())))

    assert readings(env, seed=6, between=intrude) == reference(6)


def test_malformed_token_is_ignored(env, foreign_node, reference):
    tokens = foreign_node.node.create_publisher(message_class("std_msgs/msg/Int64MultiArray"), STEP_TOPIC, RELIABLE)
    assert foreign_node.wait_until(lambda: tokens.get_subscription_count() > 0, PATIENCE_S)
    rows = readings(env, seed=8, between=lambda: tokens.publish(tokens.msg_type(data=array.array("q", [1, 2, 3]))))
    assert rows == reference(8)


def test_braking_command_without_a_token_causes_no_step(env, reference):
    env.reset(seed=9)
    stepper = env.unwrapped.stepper
    from embodied_env.core.code_types import Severity
    from embodied_env.core.types import Finding

    braking = Finding(gate="watchdog", severity=Severity.HOLD, code="wd.hold")
    rows = []
    observation, _ = env.reset(seed=9)
    rows.append(observation)
    for _ in range(3):
        stepper._arbiter.brake(braking)
    observation, *_ = env.step(np.zeros(6))
    stamps = {name: s["stamp_ns"] for name, s in env.unwrapped.last_transition.info["sensors"].items()}
    assert set(stamps.values()) == {50_000_000}


@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.long)])
def test_resets_leak_nothing_in_client_simulator_or_graph(env, count):
    (simulator,) = (process["pid"] for process in env.unwrapped.processes())
    for seed in range(1 + count // 10):
        env.reset(seed=seed)
    before, epoch = held(env, simulator), env.unwrapped.epoch
    resident = resident_kb(simulator)
    for _ in range(count):
        env.reset()
    assert env.unwrapped.epoch == epoch + count
    assert [process["pid"] for process in env.unwrapped.processes()] == [simulator]
    after, grown = held(env, simulator), grown_kb(resident, resident_kb(simulator))
    print(before, after, f"memory: {grown} kB more", sep="\n")
    assert not more(before, after)
    assert max(grown) <= FLAT_KB
