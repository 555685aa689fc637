"""A dry run with a robot and its relay checks and records every step, and publishes no command."""

import contextlib
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evidence import assert_sound
from shipped_contracts import unhurried, with_slow_emulator

pytest.importorskip("rclpy", reason="needs rclpy")

from gripper_servers import relaying
from rclpy.qos import qos_profile_system_default
from sensor_msgs.msg import JointState
from spinning import Spinning
from std_msgs.msg import Float64MultiArray

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.code_types import Severity
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.robot.relay_client import RELAY_STATE

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = with_slow_emulator(unhurried(embodied_env.load_contract("arm_reach")))
NAMESPACE = "/dry"
FORWARD = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
STEPS = 12


def with_relay(has_relay):
    profile = {**ARM.backends["real"], "discovery_s": 0.0, "relay": has_relay, "actuation_s": 0.01}
    return replace(ARM, backends={**ARM.backends, "real": profile})


class CommandSpy(Spinning):
    """Stores the commands sent to the arm and to its relay."""

    def __init__(self, domain_id):
        super().__init__("observer", NAMESPACE, domain_id)
        self.received = []
        for kind, topic in ((Float64MultiArray, "arm_controller/commands"), (JointState, "relay/command")):
            self.node.create_subscription(kind, topic, self.received.append, qos_profile_system_default)
        self.start()


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.long)], ids=["relay", "no relay"])
def dry_run(request, lasting_domain, tmp_path_factory):
    """Return the results of a dry run, with or without a relay."""
    contract = with_relay(request.param)
    folder = tmp_path_factory.mktemp("dry")
    with lasting_domain() as domain_id, contextlib.ExitStack() as cleanup:
        child = Child(simulator("-", namespace=NAMESPACE, free_running=True), first_line=dump_contract(contract))
        cleanup.callback(child.stop)
        if request.param:
            cleanup.enter_context(relaying(contract, NAMESPACE))
        observer = CommandSpy(domain_id)
        cleanup.callback(observer.close)
        options = {"namespace": NAMESPACE, "domain_id": domain_id, "connect_timeout_s": 60.0}
        with embodied_env.make(contract, backend="real", armed=False, record=folder, **options) as env:
            with pytest.warns(UserWarning, match="real: target"):
                before, reset = env.reset(seed=1, options={"target": np.array([-0.4, 0.0, 0.2])})
            steps = [env.step(FORWARD) for _ in range(STEPS)]
            path, capabilities = env.path, env.unwrapped.capabilities
        time.sleep(0.3)  # the last command arrives
    return SimpleNamespace(
        before=before,
        reset=reset,
        steps=steps,
        path=path,
        received=observer.received,
        capabilities=capabilities,
        contract=contract,
    )


def test_nothing_is_published_to_the_robot_or_its_relay(dry_run):
    assert dry_run.received == []


def test_the_robot_does_not_move(dry_run):
    positions = np.array([observation["joints_position"] for observation, *_ in dry_run.steps])
    np.testing.assert_allclose(positions, np.tile(dry_run.before["joints_position"], (STEPS, 1)), atol=1e-3)


def test_each_step_is_checked_against_the_measured_position(dry_run):
    """A reference that moves without the robot would end in a tracking error."""
    assert [info["end_reason"] for *_, info in dry_run.steps] == [""] * STEPS
    one_step = dry_run.contract.actuators["arm"].joints["j1"].velocity * dry_run.contract.control_period_s
    judged = [
        info for *_, info in dry_run.steps if info["safety"]["disposition"] <= Severity.LIMIT
    ]  # ignore brief stalls
    assert judged
    for info in judged:
        assert 0.0 < info["action"]["applied_si"]["j1"] - dry_run.before["joints_position"][0] <= one_step + 2e-3


def test_the_reset_report_is_marked_as_a_dry_run(dry_run):
    assert dry_run.reset["reset"]["level"] == "none"
    assert dry_run.reset["reset"]["routine"] == ""
    assert dry_run.reset["reset"]["seed_applied"] == -1
    assert dry_run.reset["reset"]["options_ignored"] == "target"
    assert (dry_run.reset["reset"]["judged"], dry_run.reset["reset"]["solved"]) == (True, False)


@pytest.mark.needs("audit", "explain")
def test_the_dry_run_is_named_by_the_audit_and_by_explain(dry_run, capsys):
    from embodied_env.extensions.audit.audit_cli import print_report

    report = embodied_env.audit_run(dry_run.path)
    assert report.world == "dry run"
    print_report(report)
    assert "(dry run)" in capsys.readouterr().out
    assert "on real (dry run)" in embodied_env.explain(dry_run.steps[0][-1])


def test_the_recorded_dry_run_is_marked_and_passes_the_audit(dry_run):
    assert_sound(dry_run.path)
    assert json.loads((dry_run.path / "summary.json").read_text())["world"] == "dry run"
    assert json.loads((dry_run.path / "manifest.json").read_text())["capabilities"]["actuates"] is False
    (first, *_) = embodied_env.read_run(dry_run.path).rows()
    assert "no command is published" in first["inner"]["details"]["dry_run"]


def test_there_is_no_actuation_evidence_in_a_dry_run(dry_run):
    assert not dry_run.capabilities.actuation
    assert not dry_run.capabilities.acknowledges_commands
    assert all("actuation_s" not in info["latency"] for *_, info in dry_run.steps)


@pytest.mark.long
def test_a_dry_run_of_a_solved_task_does_not_count_as_success(lasting_domain, tmp_path):
    contract = with_relay(False)
    wide = replace(contract.task, parameters={**contract.task.parameters, "success_radius_m": 5.0})
    contract = replace(contract, task=wide)
    with lasting_domain() as domain_id:
        robot = Child(simulator("-", namespace=NAMESPACE, free_running=True), first_line=dump_contract(contract))
        env = embodied_env.make(
            contract, backend="real", namespace=NAMESPACE, domain_id=domain_id, armed=False, record=tmp_path
        )
        try:
            for _ in range(2):
                with pytest.warns(UserWarning, match="solved before the first step"):
                    env.reset()
                *_, terminated, _, _ = env.step(FORWARD)
                assert terminated
        finally:
            env.close()
            robot.stop()
    summary = json.loads((env.path / "summary.json").read_text())
    assert (summary["success_rate"], summary["solved_at_reset"], summary["world"]) == (None, 2, "dry run")
    assert_sound(env.path, warnings=["reset.solved_in_place"])


def test_an_unarmed_relay_is_not_a_safety_input():
    env = embodied_env.make(with_relay(True), backend="real", armed=False)
    backend: Any = env.unwrapped.stepper.backend
    assert RELAY_STATE not in backend.estops()
    env.close()
