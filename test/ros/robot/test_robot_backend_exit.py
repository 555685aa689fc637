"""The robot brakes within its limits however a program ends.

The programs are subprocesses over ROS 2, with the robot emulator. The evidence is the actuator's topic, and the exit
status of the program.
"""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import ros_domains
from shipped_contracts import changed_text, with_slow_emulator

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.processes.child_process import Child, relay, remove_orphaned_segments, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]

DOMAIN_ID = ros_domains.FOR_KILLS
SURROUNDINGS = {"ROS_DOMAIN_ID": str(DOMAIN_ID), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
PATIENCE_S = 60.0
QUIET_S = 0.3  # without a command at rest: the last one has arrived
STALL_S = 3.0  # without a command in motion: longer than a busy machine delays one
SHIPPED = {"arm": "arm_reach", "cart": "cart_goal"}
DRIVEN = {"arm": 0, "cart": 1}  # the joint: the shoulder, or rotation in place
ROUNDING = 1e-9
CAME_TO_REST_BY_ITSELF = 7

PROGRAM = """
import gc, multiprocessing, os, signal, sys, threading, time
import gymnasium
import numpy as np
import embodied_env

path, namespace, other_path, other_namespace, folder = sys.argv[1:]

def make(path=path, namespace=namespace, **options):
    return embodied_env.make(path, backend="real", namespace=namespace, **options)

def drive(env):
    env.reset(seed=1)
    while not is_fast(env):
        *_, terminated, truncated, _ = env.step(forward(env))
        if terminated or truncated:  # on a busy machine
            env.reset()

def is_fast(env):
    done = env.unwrapped.last_transition
    return done is not None and np.abs(done.report.velocity_si).max() > (1.3 if env.action_space.shape == (2,) else 2.4)

def drive_each(*envs):
    threads = [threading.Thread(target=drive, args=(env,)) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def forward(env):
    action = np.zeros(env.action_space.shape)
    action[1 if action.size == 2 else 0] = 1.0
    return action

def go_on(env):
    drive(env)
    while True:
        *_, terminated, truncated, _ = env.step(forward(env))
        if terminated or truncated:
            env.reset()

def start_policy(env, *, daemon=False, target=go_on):
    thread = threading.Thread(target=target, args=(env,), daemon=daemon)
    thread.start()
    while not is_fast(env):
        time.sleep(0.01)
    return thread

def call_in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def end_without_exit_handlers_when_freed():
    while threading.active_count() > 1:
        time.sleep(0.01)
    os._exit(7)

def function():
    drive(make())

def failing_function():
    env = make()
    drive(env)
    raise ValueError

def leaving_function():
    env = make()
    drive(env)
    sys.exit(3)

def stubborn(env):
    try:
        go_on(env)
    except embodied_env.errors.ClosedError:
        time.sleep(0.5)

def caught():
    try:
        failing_function()
    except ValueError:
        pass

def wrapped():
    env = gymnasium.wrappers.TimeLimit(make(record=folder), 500)
    drive(gymnasium.wrappers.RecordEpisodeStatistics(env))

def in_forked_worker():
    worker = multiprocessing.get_context("fork").Process(target=function)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)

def kill(number):
    os.kill(os.getpid(), number)

"""

ENDS = {  # the rest of the program, and its exit status
    "return": ("function()", 0),
    "end": ("env = make(); drive(env)", 0),
    "caught exception": ("caught()", 0),
    "uncaught exception": ("env = make(); drive(env); raise ValueError", 1),
    "uncaught exception of a function": ("failing_function()", 1),
    "sys.exit": ("env = make(); drive(env); sys.exit(3)", 3),
    "sys.exit of a function": ("leaving_function()", 3),
    "sys.exit in a thread": ("call_in_thread(leaving_function)", 0),
    "exception in a thread": ("call_in_thread(failing_function)", 0),
    "a policy thread goes on": ("start_policy(make())", 0),
    "a policy thread goes on after an exception": ("env = make(); start_policy(env); raise ValueError", 1),
    "a policy thread that ends late": ("start_policy(make(), target=stubborn)", 0),
    "a daemon policy thread goes on": ("env = make(); start_policy(env, daemon=True); sys.exit(5)", 5),
    "SIGINT": ("env = make(); drive(env); kill(signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    "SIGTERM": ("env = make(); drive(env); kill(signal.SIGTERM); time.sleep(60)", 143),
    "SIGTERM while a policy thread steps": ("thread = start_policy(make()); kill(signal.SIGTERM); thread.join()", 143),
    "SIGTERM in braking": (
        "env = make(); drive(env); threading.Timer(0.02, kill, (signal.SIGTERM,)).start(); env.close(); time.sleep(60)",
        143,
    ),
    "a cycle at the end": ("gc.disable(); env = make(); env.unwrapped.itself = env; drive(env); del env", 0),
    "a forked worker": ("in_forked_worker()", 0),
    "recorded": ("env = make(record=folder, record_messages=True); drive(env)", 0),
}
FREED = {  # these brake and release everything while the program continues
    "freed by del": "env = make(); drive(env); del env",
    "freed by return": "function()",
    "freed by a caught exception": "caught()",
    "freed from a cycle": "env = make(); env.unwrapped.itself = env; drive(env); del env; gc.collect()",
    "freed from wrappers": "wrapped()",
    "freed from a recorder of messages": "drive(make(record=folder, record_messages=True))",
    "freed in a thread": "call_in_thread(function)",
}
WAYS = ENDS | {
    name: (f"{text}\nend_without_exit_handlers_when_freed()", CAME_TO_REST_BY_ITSELF) for name, text in FREED.items()
}
IN_DEFAULT_RUN = {  # an exit handler, a finalizer, and a relay under a thread that still steps
    ("arm", False, "uncaught exception of a function"),
    ("arm", False, "freed from a recorder of messages"),
    ("cart", True, "a policy thread goes on"),
}


class Robot:
    """An emulator, its relay if any, and a subscriber of its actuator topic."""

    def __init__(self, kind, folder, *, is_relayed):
        profile = {"discovery_s": 0.0, "connect_timeout_s": PATIENCE_S / 2, "relay": is_relayed}
        self.path = folder / f"{kind}.yaml"
        contract = with_slow_emulator(embodied_env.load_contract(SHIPPED[kind]))
        self.path.write_text(
            changed_text(contract, {f"backends.real.{key}": each for key, each in profile.items()}), encoding="utf-8"
        )
        self.contract = embodied_env.load_contract(self.path)
        self.namespace = f"/ways_out_{os.getpid()}_{kind}_{int(is_relayed)}"
        self.joint, self.layout = DRIVEN[kind], ActionLayout(self.contract)
        specs = [simulator("-", namespace=self.namespace, source=str(self.path), free_running=True)]
        specs += [relay("-", namespace=self.namespace, source=str(self.path))] if is_relayed else []
        self.children = [Child(s, first_line=dump_contract(self.contract), environment=SURROUNDINGS) for s in specs]
        self.ros = RosNode("witness", namespace=self.namespace, clock=SteadyClock(), domain_id=DOMAIN_ID)
        self.listener = ReceiveThread(self.ros.node, SteadyClock())
        self.commands = []
        ((_, actuator),) = self.contract.actuators.items()
        self.listener.subscribe("commands", actuator.type, actuator.topic, RELIABLE, self._take)
        self.listener.start()

    def _take(self, arrival):
        message = arrival.message
        value = message.twist.angular.z if hasattr(message, "twist") else message.data[self.joint]
        self.commands.append((arrival.info["source_timestamp"], value))

    def connect(self):
        with self.listener.condition:
            self.commands.clear()

    def until_quiet(self):
        """Return stamps, s, and joint commands once no more arrive, at rest or stalled."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            count = len(self.commands)
            time.sleep(QUIET_S)
            if len(self.commands) == count and not self._is_at_rest():
                time.sleep(STALL_S)
            if len(self.commands) == count:
                stamps_ns, values = zip(*self.commands, strict=True)
                return np.array(stamps_ns) / NS_PER_S, np.array(values)
            assert time.monotonic() < end_s, "commands do not end"

    def _is_at_rest(self):
        last = [value for _, value in self.commands[-2:]]
        return len(last) == 2 and (last[-1] == 0.0 if self.layout.is_velocity[self.joint] else last[0] == last[1])

    def close(self):
        self.listener.stop()
        self.ros.close()
        for child in reversed(self.children):
            child.stop()


@pytest.fixture(scope="module")
def robots(request, tmp_path_factory):
    """Robots of these kinds, with or without a relay, shared by consecutive tests with the same parameters."""
    kinds, is_relayed = request.param
    made, remains = [], set()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        for kind in kinds:
            made.append(Robot(kind, tmp_path_factory.mktemp("ways_out"), is_relayed=is_relayed))
    yield SimpleNamespace(each=made, remains=remains)
    for robot in made:
        robot.close()
    remove_orphaned_segments(remains)


def start(text, robot, folder="", other=None):
    other = other or robot
    arguments = [robot.path, robot.namespace, other.path, other.namespace, folder]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **SURROUNDINGS},
    )


def run(text, robot, folder, other=None):
    """Run a program to its end, and return its exit status and output."""
    program = start(text, robot, folder, other)
    try:
        output, _ = program.communicate(timeout=PATIENCE_S)
    finally:
        program.kill()
    return program.returncode, output


def check_it_braked(robot, output=""):
    """Assert that the last commands brake from full speed to rest within the limits."""
    (stamps_s, values), joint = robot.until_quiet(), robot.joint
    limits, period_s = robot.layout.limits, robot.contract.control_period_s
    fastest, slowing = limits.fastest[joint], limits.deceleration[joint] * period_s  # at most one command
    is_velocity = robot.layout.is_velocity[joint]
    speeds = np.abs(values if is_velocity else np.diff(values) / period_s)  # for a position, at least this fast
    fast = np.flatnonzero(speeds > 0.6 * fastest)
    assert fast.size > 0, f"it never moved: {output} {values}"
    last = fast[-1]
    assert speeds[-1] == 0.0, speeds[last:]
    rest = last + 1 + np.count_nonzero(speeds[last + 1 :])
    if not is_velocity and np.diff(stamps_s[last + 1 : rest + 2]).max() > 2.9 * period_s:
        return  # on a busy machine the arm may already have arrived
    assert np.count_nonzero(speeds[last + 1 :]) >= np.floor(0.8 * speeds[last] / slowing), speeds[last:]
    assert (speeds <= fastest + ROUNDING).all()
    if is_velocity:
        assert (np.diff(speeds) >= -slowing - ROUNDING).all()
        assert (np.diff(speeds[last:]) <= ROUNDING).all()
    else:
        assert abs(values[-1] - values[last + 1]) >= 0.5 * (speeds[last] - slowing) ** 2 / limits.deceleration[joint]


ALONE = {(kind, is_relayed): ((kind,), is_relayed) for kind in SHIPPED for is_relayed in (False, True)}
BOTH = [(tuple(SHIPPED), is_relayed) for is_relayed in (False, True)]  # pytest shares a fixture of one object


def cases():
    found = []
    for (kind, is_relayed), alone in ALONE.items():
        for way in WAYS:
            marks = () if (kind, is_relayed, way) in IN_DEFAULT_RUN else pytest.mark.long
            name = f"{kind}{' with a relay' if is_relayed else ''}: {way}"
            found.append(pytest.param(alone, way, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("robots", "way"), cases(), indirect=["robots"])
def test_robot_brakes_and_the_program_keeps_its_exit_status(robots, tmp_path, way):
    (robot,) = robots.each
    text, status = WAYS[way]
    robot.connect()
    returned, output = run(text, robot, tmp_path)
    assert returned == status, output
    check_it_braked(robot, output)


@pytest.mark.long
@pytest.mark.parametrize("robots", BOTH, indirect=True)
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("two = make(), make(other_path, other_namespace); drive_each(*two)", 0),
        ("two = make(), make(other_path, other_namespace); drive_each(*two); raise ValueError", 1),
        (
            "two = make(), make(other_path, other_namespace); drive_each(*two); del two; end_without_exit_handlers_when_freed()",
            CAME_TO_REST_BY_ITSELF,
        ),
        ("two = [make(), make(other_path, other_namespace)]; drive_each(*two); del two[0]", 0),
    ],
    ids=["end", "uncaught exception", "freed", "one freed"],
)
def test_both_robots_brake(robots, tmp_path, text, status):
    first, other = robots.each
    for robot in (first, other):
        robot.connect()
    returned, output = run(text, first, tmp_path, other)
    assert returned == status, output
    for robot in robots.each:
        check_it_braked(robot, output)


@pytest.mark.parametrize("robots", [pytest.param(ALONE["cart", False], marks=pytest.mark.long)], indirect=True)
def test_closing_in_a_forked_child_does_not_brake_the_parents_robot(robots, tmp_path):
    (robot,) = robots.each
    robot.connect()
    text = (
        "env = make(); drive(env)\nif (pid := os.fork()) == 0:\n    env.close()\n    os._exit(4)\n"
        "while env.unwrapped.step_index < 100:\n"
        "    *_, terminated, truncated, _ = env.step(forward(env))\n    if terminated or truncated: env.reset()\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4\ndrive(env)"
    )
    returned, output = run(text, robot, tmp_path)
    assert returned == 0, output
    check_it_braked(robot, output)
