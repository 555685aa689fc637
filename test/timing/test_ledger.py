"""A delay appears only in its own stage, in nanoseconds."""

import random

import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import PERIOD_NS, Scene, SlowBackend

from embodied_env.core.code_types import Quality
from embodied_env.errors import BackendLostError, UsageError
from embodied_env.timing.clock import ManualClock, VirtualClock
from embodied_env.timing.ledger import Ledger, StepEvent

ELEMENTARY = ("handoff", "inference", "gate", "publish")
DELAY_NS = 7_000_003


class SlowAction:
    """An action that the gate needs time to read."""

    def __init__(self, clock, delay_ns):
        self._clock, self._delay_ns = clock, delay_ns

    def __array__(self, dtype=None, copy=None):
        self._clock.advance_ns(self._delay_ns)
        return np.zeros(2)


class SlowObserver:
    """An observer that delays the handoff, between the frozen observation and the agent."""

    def __init__(self, clock):
        self._clock, self.delay_ns = clock, 0

    def observe(self, transition):
        self._clock.advance_ns(self.delay_ns)


class Line:
    """A stepper with a known delay at each stage, and an agent that computes for `think_ns`, then waits `wait_ns`."""

    def __init__(self):
        self.clock = ManualClock(start_ns=123)
        self.observer = SlowObserver(self.clock)
        contract = scripted_tasks.contract(episode__horizon_steps=1000)
        self.scene = Scene(
            contract, clock=self.clock, backend=SlowBackend, observers=[self.observer], step_timeout_s=1e6
        )
        self.scene.reset()

    def step(self, *, handoff=0, inference=0, policy=None, gate=0, publish=0, world=0):
        """Take two steps, the second with these delays, and return its stages in nanoseconds."""
        self.observer.delay_ns = handoff
        self.scene.step()
        if policy is not None:
            self.clock.advance_ns(policy)
            self.scene.stepper.ledger.mark("policy")
        self.clock.advance_ns(inference - (policy or 0))
        self.scene.backend.send_ns, self.scene.backend.world_ns = publish, world
        self.transition = self.scene.step(SlowAction(self.clock, gate))
        return stages(self.transition.stamps_ns)


def stages(ns):
    """Compute the stages from the raw stamps, as documented."""
    return {
        "handoff": ns["previous_returned"] - ns["previous_observed"],
        "inference": ns["entered"] - ns["previous_returned"],
        "gate": ns["gated"] - ns["entered"],
        "publish": ns["published"] - ns["gated"],
        "obs_to_command": ns["published"] - ns["previous_observed"],
        "world": ns["observed"] - ns["published"],
    }


@pytest.fixture
def line():
    made = Line()
    yield made
    made.scene.close()


@pytest.mark.parametrize("stage", ELEMENTARY)
def test_delay_is_counted_in_exactly_one_elementary_stage(line, stage):
    found = line.step(**{stage: DELAY_NS})
    assert {name: found[name] for name in ELEMENTARY} == {name: DELAY_NS * (name == stage) for name in ELEMENTARY}
    assert found["obs_to_command"] == DELAY_NS


def test_world_delay_is_not_counted_in_the_environments_stages(line):
    found = line.step(world=DELAY_NS)
    assert found["world"] == DELAY_NS
    assert not any(found[name] for name in (*ELEMENTARY, "obs_to_command"))


def test_obs_to_command_is_the_exact_sum_of_its_parts_in_nanoseconds(line):
    draw = random.Random(5)
    for _ in range(50):
        delays = {name: draw.randrange(10**10) for name in (*ELEMENTARY, "world")}
        found = line.step(**delays)
        assert {name: found[name] for name in delays} == delays
        assert found["obs_to_command"] == sum(delays[name] for name in ELEMENTARY)


class LostWhileMoving(SlowBackend):
    """Accepts the command, moves for a while, and is lost at the third step."""

    def advance(self, target_ns, deadline_ns):
        super().advance(target_ns, deadline_ns)
        if self._step == 3:
            raise BackendLostError("gone", "it was there a moment ago")


def test_lost_world_does_not_lengthen_publish_stage(close_later):
    clock = ManualClock()
    scene = close_later(Scene(clock=clock, backend=LostWhileMoving, step_timeout_s=1e6))
    scene.reset()
    scene.run(2)
    scene.backend.world_ns = DELAY_NS
    done = scene.step()
    assert done.info["end_reason"] == "backend_lost:gone"
    found = stages(done.stamps_ns)
    assert (found["publish"], found["world"]) == (0, DELAY_NS)


def test_info_has_the_stages_in_seconds_and_the_whole_in_milliseconds(line):
    line.step(handoff=1_000_000, inference=2_000_000, gate=3_000_000, publish=4_000_000, world=5_000_000)
    info = line.transition.info
    expected = {
        "handoff_s": 0.001,
        "inference_s": 0.002,
        "gate_s": 0.003,
        "publish_s": 0.004,
        "obs_to_command_s": 0.01,
        "world_s": 0.005,
    }
    assert {name: info["latency"][name] for name in expected} == expected
    assert info["latency_ms"] == 10.0


@pytest.mark.parametrize(
    ("marked", "policy_s", "quality"), [({"policy": 6_000_000}, 0.006, Quality.OK), ({}, 0.009, Quality.UNMARKED)]
)
def test_policy_stage_ends_at_the_mark_or_with_the_inference(line, marked, policy_s, quality):
    line.step(inference=9_000_000, **marked)
    latency = line.transition.info["latency"]
    assert (latency["policy_s"], latency["inference_s"]) == (policy_s, 0.009)
    assert latency["quality"]["policy_s"] == quality


def test_a_mark_applies_to_one_step_only(line):
    line.step(inference=9_000_000, policy=6_000_000)
    assert "marked" in line.transition.stamps_ns
    line.step()
    assert "marked" not in line.transition.stamps_ns


def test_only_the_policy_can_be_marked(line):
    with pytest.raises(UsageError, match="'policy'"):
        line.scene.stepper.ledger.mark("thinking")


def test_the_period_is_measured_between_step_calls(line):
    line.step(handoff=1, inference=20, gate=300, publish=4000, world=50000)
    line.clock.advance_ns(600_000)
    ns = line.scene.step().stamps_ns
    assert ns["entered"] - ns["previous_entered"] == 300 + 4000 + 50000 + 1 + 600_000


def test_the_first_period_of_an_episode_starts_when_reset_returns(line):
    for _ in range(2):
        line.scene.reset()
        line.clock.advance_ns(DELAY_NS)
        latency = line.scene.step().info["latency"]
        assert latency["period_s"] == DELAY_NS / 1e9
        assert latency["quality"]["period_s"] == Quality.FIRST
        assert line.scene.step().info["latency"]["quality"]["period_s"] == Quality.OK


def test_the_first_step_uses_the_observation_of_its_own_reset(line):
    line.scene.step()
    line.clock.advance_ns(10**12)
    line.scene.reset()
    line.clock.advance_ns(DELAY_NS)
    assert stages(line.scene.step().stamps_ns)["obs_to_command"] == DELAY_NS


def test_inference_takes_no_virtual_time(close_later):
    scene = close_later(Scene(clock=VirtualClock()))
    scene.reset()
    infos = [scene.step().info["latency"] for _ in range(3)]
    assert [info["obs_to_command_s"] for info in infos] == [0.0, 0.0, 0.0]
    assert infos[1]["period_s"] == PERIOD_NS / 1e9


def test_raw_stamps_belong_to_this_step():
    """The time of return is a stamp of the next step, since it is known only afterwards."""
    ledger = Ledger(ManualClock())
    ledger.mark("policy")
    assert set(ledger.stamps_ns()) == {slot.name.lower() for slot in StepEvent if slot is not StepEvent.RETURNED}


def test_slow_wrapper_lengthens_handoff_not_inference(line):
    line.scene.step()
    line.clock.advance_ns(DELAY_NS)
    line.scene.stepper.ledger.mark("returned")
    line.clock.advance_ns(5)
    found = stages(line.scene.step().stamps_ns)
    assert (found["handoff"], found["inference"], found["obs_to_command"]) == (DELAY_NS, 5, DELAY_NS + 5)
