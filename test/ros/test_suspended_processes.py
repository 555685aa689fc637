"""SIGSTOP at real processes: what an independent subscriber receives never speeds a base up beyond its limits.

The limiter has the source stamps of the topic, and the timeout of the controller after which the base is at rest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import psutil
import pytest
from shipped_contracts import changed_contract, changed_text

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.qos import QoSProfile

from embodied_env.contract.loader import dump_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.core.process.child import Child, relay, simulator
from embodied_env.ros.node import RosNode
from embodied_env.ros.receive_thread import ReceiveThread

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

PATIENT = {
    "backends.real.discovery_s": 0.0,
    "safety.watchdog.hold_steps": 500,  # so that braking is that of the step
    "safety.watchdog.stop_steps": 1000,
}
TIMEOUT_NS, PERIOD_NS, SUSPENDED_S, STEPS_TO_SPEED = NS_PER_S // 2, NS_PER_S // 10, 0.8, 8

LEARNER = """
import json, os, signal, sys
import numpy as np
import embodied_env

class Suspended:  # a tensor: its numbers come when the process goes on
    def detach(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        return self
    def cpu(self):
        return np.array([0.0, 1.0])

path, namespace, domain_id, times, by_itself = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "True"
codes, unsure = [], 0
with embodied_env.make(path, backend="real", namespace=namespace, domain_id=domain_id) as env:
    env.reset(seed=1)
    print("reset", flush=True)
    step = 0
    while times > 0:
        step += 1
        is_due = step % STEPS == 0
        times -= is_due
        *_, terminated, truncated, info = env.step(Suspended() if is_due and by_itself else np.array([0.0, 1.0]))
        codes += [found.code for found in env.unwrapped.last_transition.report.findings]
        unsure += not info["safety"]["guaranteed"]["acceleration"]
        if terminated or truncated:
            env.reset()
            step = 0
print(json.dumps([codes.count("act.late"), unsure]))
""".replace("STEPS", str(STEPS_TO_SPEED))


@pytest.mark.parametrize(
    ("suspended", "times"),
    [
        ("verdict", 3),
        pytest.param("verdict", 40, marks=pytest.mark.long),
        pytest.param("learner", 100, marks=pytest.mark.long),
        pytest.param("relay", 60, marks=pytest.mark.long),
    ],
)
def test_a_process_that_is_suspended_never_sets_a_base_at_rest_in_motion(domain_id, tmp_path, suspended, times):
    changes = {**PATIENT, "backends.real.relay": suspended == "relay"}
    contract, namespace = changed_contract("cart_goal", changes), f"/suspended_{os.getpid()}"
    (tmp_path / "cart.yaml").write_text(changed_text("cart_goal", changes))
    specs = [simulator("-", namespace=namespace, free_running=True)]
    specs += [relay("-", namespace=namespace)] if suspended == "relay" else []
    children = [Child(spec, first_line=dump_contract(contract)) for spec in specs]
    node, turns = RosNode("watch", namespace=namespace, clock=SteadyClock(), domain_id=domain_id), []
    watch = ReceiveThread(node.node, SteadyClock())
    ((_, actuator),) = contract.actuators.items()
    watch.subscribe(
        actuator.topic,
        actuator.type,
        actuator.topic,
        QoSProfile(depth=1000),
        lambda a: turns.append((a.info["source_timestamp"], a.message.twist.angular.z)),
    )
    watch.start()
    by_itself = suspended == "verdict"
    arguments = [tmp_path / "cart.yaml", namespace, domain_id, times, by_itself]
    learner = subprocess.Popen(
        [sys.executable, "-c", LEARNER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROS_DOMAIN_ID": str(domain_id), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"},
    )
    try:
        assert learner.stdout.readline() == "reset\n"
        victim, rng = children[-1] if suspended == "relay" else learner, np.random.default_rng(times)
        while learner.poll() is None:
            if not by_itself:
                time.sleep(rng.uniform(0.6, 1.0))
                os.kill(victim.pid, signal.SIGSTOP)
            elif psutil.Process(victim.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
                continue
            time.sleep(SUSPENDED_S)
            os.kill(victim.pid, signal.SIGCONT)
        late, unsure = json.loads(learner.stdout.read())
    finally:
        learner.kill()
        learner.communicate()
        time.sleep(0.2)
        watch.stop()
        node.close()
        for child in reversed(children):
            child.stop()
    gaps, problems = check_turns(sorted(turns), ActionLayout(contract).limits.acceleration[1])
    assert len(problems) <= unsure, problems  # those of a suspension inside a write
    assert gaps >= times // 2
    assert late >= times // 2 or not by_itself


def check_turns(turns, acceleration):
    """Return the number of gaps after which the base is at rest, and the messages that speed it up too much."""
    gaps, problems = 0, []
    for (before_ns, before), (now_ns, turn) in pairwise(turns):
        gap_ns = now_ns - before_ns
        gaps += gap_ns > TIMEOUT_NS
        moving = 0.0 if gap_ns > TIMEOUT_NS + 10_000_000 else abs(before)  # when it stopped exactly is not known
        if abs(turn) > moving + acceleration * min(gap_ns, PERIOD_NS) / NS_PER_S + 1e-6:
            problems.append((gap_ns / NS_PER_S, before, turn))
    return gaps, problems
