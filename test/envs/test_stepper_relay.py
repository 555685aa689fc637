"""Steps through a relay, whose report becomes part of the transition."""

import dataclasses

import numpy as np
import pytest

import embodied_env
from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding, SentCommand
from embodied_env.envs.stepper import Stepper
from embodied_env.errors import UsageError
from embodied_env.tasks import load_task
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.realtime  # a step that is delayed brakes

ARM = embodied_env.load_contract("arm_reach")
FORWARD = np.full(6, 0.5)


class Relayed(FakeBackend):
    """Accepts commands and returns a scripted report."""

    def __init__(self, contract, *, clock):
        super().__init__(contract, clock=clock, free_running=True)
        self.capabilities = dataclasses.replace(self.capabilities, acknowledges_commands=True)
        self.changes = {}

    def send(self, command):
        super().send(command)
        slow = np.clip(command.report.velocity_si, -1.0, 1.0)  # the steps of a test follow each other immediately
        report = dataclasses.replace(command.report, **{"velocity_si": slow, **self.changes})
        return SentCommand(seq=command.seq, values=report.applied_si, report=report)


@pytest.fixture
def scene():
    """A stepper over the relayed backend, during an episode."""
    clock = SteadyClock()
    backend = Relayed(ARM, clock=clock)
    stepper = Stepper(ARM, backend, load_task(ARM), clock=clock)
    stepper.reset(world_seed=1, options=None, seeded=True)
    stepper.backend = backend
    yield stepper
    stepper.close()


def step(stepper, action=FORWARD):
    stepper.begin(action)
    return stepper.finish()


def test_the_limits_are_not_applied_twice(scene):
    report = step(scene, np.ones(6)).report
    assert (report.disposition, report.findings) == (Severity.PASS, ())


def test_the_relay_report_is_applied(scene):
    answer = np.full(6, 0.25)
    scene.backend.changes = {"applied": answer, "applied_si": answer / 2}
    info = step(scene).info
    np.testing.assert_array_equal(info["action"]["applied"], answer)
    assert list(info["action"]["applied_si"].values()) == [0.125] * 6
    np.testing.assert_array_equal(info["action"]["requested"], FORWARD)


def test_a_latch_of_the_relay_is_latched_until_reset(scene):
    stop = Finding(gate="latch", severity=Severity.STOP, code="latch.stop", detail="latched by wd.stop")
    scene.backend.changes = {"findings": (stop,), "disposition": Severity.STOP, "velocity_si": np.zeros(6)}
    done = step(scene)
    assert done.info["end_reason"] == "safety_stop:latch.stop"
    assert done.info["safety"]["latched"]
    scene.backend.changes = {}
    scene.reset(world_seed=2, options=None, seeded=False)
    assert not step(scene).info["safety"]["latched"]


def test_ineffective_braking_is_aborted(scene):
    step(scene)
    scene.backend.changes = {"velocity_si": np.ones(6)}
    scene.close()
    (reason,) = scene.backend.halted
    assert "no_rest" in reason


def test_limits_enforced_by_a_relay_cannot_be_changed(scene):
    slower = dataclasses.replace(ARM.actuators["arm"].joints["j1"], velocity=1.0)
    with pytest.raises(UsageError, match=r"change_limits\(\) not supported with a relay"):
        scene.change_limits({"j1": slower})


def test_a_reset_during_an_episode_brakes_first(scene):
    for _ in range(4):
        step(scene, np.ones(6))
    moving = len(scene.backend.sent)
    assert scene.backend.sent[-1].report.velocity_si.all()
    scene.reset(world_seed=2, options=None, seeded=False)
    braking = scene.backend.sent[moving:]
    assert {command.report.disposition for command in braking} == {Severity.HOLD}
    assert not braking[-1].report.velocity_si.any()
