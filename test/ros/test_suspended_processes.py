"""SIGSTOP at real processes: what an independent subscriber receives never speeds a base up beyond its limits."""

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

PATIENT = {"backends.real.discovery_s": 0.0, "safety.watchdog.hold_steps": 500, "safety.watchdog.stop_steps": 1000}
SUSPENDED_S, LONG = 0.8, pytest.mark.long  # longer than the 0.5 s after which the controller stops the base

LEARNER = """
import json, os, signal, sys
import numpy as np
import embodied_env

class Suspended:  # a tensor whose numbers come when the process goes on
    def detach(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        return self
    def cpu(self):
        return np.array([0.0, 1.0])

path, namespace, domain_id, times, by_itself = sys.argv[1:3] + [int(each) for each in sys.argv[3:]]
late, unsure, step = 0, 0, 0
with embodied_env.make(path, backend="real", namespace=namespace, domain_id=domain_id) as env:
    env.reset(seed=1)
    print("reset", flush=True)
    while times > 0:
        step += 1
        times -= step % 8 == 0
        *_, info = env.step(Suspended() if by_itself and step % 8 == 0 else np.array([0.0, 1.0]))
        late += "act.late" in [found.code for found in env.unwrapped.last_transition.report.findings]
        unsure += not info["safety"]["guaranteed"]["acceleration"]
        if info["end_reason"]:
            env.reset()
            step = 0
print(json.dumps([late, unsure]))
"""


@pytest.fixture
def watched(domain_id, tmp_path):
    """Return a function that starts a base and its learner, and collects the messages of the topic by source stamp."""
    namespace, turns, started = f"/suspended_{os.getpid()}", [], []

    def start(contract, *arguments):
        specs = [simulator("-", namespace=namespace, free_running=True)]
        specs += [relay("-", namespace=namespace)] if contract.backends["real"]["relay"] else []
        started.extend(Child(spec, first_line=dump_contract(contract)) for spec in specs)
        command = [sys.executable, "-c", LEARNER, tmp_path / "cart.yaml", namespace, domain_id, *arguments]
        learner = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        started.append(learner)
        assert learner.stdout.readline() == "reset\n"
        return started[-2], learner, turns

    ((topic, kind),) = [(a.topic, a.type) for a in changed_contract("cart_goal", {}).actuators.values()]
    node = RosNode("watch", namespace=namespace, clock=SteadyClock(), domain_id=domain_id)
    watch = ReceiveThread(node.node, SteadyClock())
    watch.subscribe(
        topic,
        kind,
        topic,
        QoSProfile(depth=1000),
        lambda found: turns.append((found.info["source_timestamp"], found.message.twist.angular.z)),
    )
    watch.start()
    yield start
    watch.stop()
    node.close()
    learner = started.pop()
    learner.kill()
    learner.communicate()
    for child in reversed(started):
        child.stop()


@pytest.mark.parametrize(
    ("suspended", "times"),
    [
        ("verdict", 3),
        pytest.param("verdict", 40, marks=LONG),
        pytest.param("learner", 100, marks=LONG),
        pytest.param("relay", 60, marks=LONG),
    ],
)
def test_a_process_that_is_suspended_never_sets_a_base_at_rest_in_motion(watched, tmp_path, suspended, times):
    changes, by_itself = {**PATIENT, "backends.real.relay": suspended == "relay"}, suspended == "verdict"
    contract, rng = changed_contract("cart_goal", changes), np.random.default_rng(times)
    (tmp_path / "cart.yaml").write_text(changed_text("cart_goal", changes))
    last, learner, turns = watched(contract, times, int(by_itself))
    victim = last if suspended == "relay" else learner
    while learner.poll() is None:
        if by_itself and psutil.Process(victim.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
            continue
        if not by_itself:
            time.sleep(rng.uniform(0.6, 1.0))
            os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        os.kill(victim.pid, signal.SIGCONT)
    late, unsure = json.loads(learner.stdout.read())
    acceleration, period_s = ActionLayout(contract).limits.acceleration[1], contract.control_period_s
    gaps, problems = 0, []
    for (before_ns, before), (now_ns, turn) in pairwise(sorted(turns)):
        gap_s = (now_ns - before_ns) / NS_PER_S
        gaps += gap_s > 0.5
        moving = 0.0 if gap_s > 0.51 else abs(before)  # when exactly it stopped is not known
        if abs(turn) > moving + acceleration * min(gap_s, period_s) + 1e-6:
            problems.append((gap_s, before, turn))
    assert len(problems) <= unsure, problems  # those of a suspension inside a write
    assert gaps >= times // 2
    assert late >= times // 2 or not by_itself
