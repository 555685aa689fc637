"""A small contract, tasks that end on request, and backends that fail on request."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract import Contract, parse_contract
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.envs.stepper import Stepper
from embodied_env.errors import BackendNotReadyError
from embodied_env.tasks import load_task
from embodied_env.timing.clock import Clock, ManualClock

PERIOD_S = 0.05
PERIOD_NS = 50_000_000
JOINTS = ("shoulder", "elbow")
VELOCITY, ACCELERATION, DECELERATION = 1.0, 4.0, 8.0


class OneClock(ManualClock):
    """A manual clock that stamps everything in its world."""

    virtual = False


@dataclass(frozen=True, kw_only=True)
class ScriptedParameters:
    """The steps, from 1, at which the task ends or has an error; 0 is never."""

    success_at: int = 0
    failure_at: int = 0
    out_of_bounds_at: int = 0
    raise_at: int = 0


class Scripted:
    """The reward is the step number, which is the sequence number of the joints."""

    version = 1
    terms = ("step",)
    Parameters = ScriptedParameters

    def __init__(self, contract: Contract, parameters: ScriptedParameters) -> None:
        self._p = parameters

    def judge(self, previous: Snapshot, current: Snapshot, applied: Any) -> TaskResult:
        step = current.samples["joints"].seq
        if step == self._p.raise_at:
            raise RuntimeError("the task has an error")
        verdict = Verdict(
            success=step == self._p.success_at,
            failure="dropped" if step == self._p.failure_at else "",
            out_of_bounds="fence" if step == self._p.out_of_bounds_at else "",
        )
        return TaskResult(reward=float(step), verdict=verdict, terms={"step": float(step)})


class Spy(Scripted):
    """Stores the arguments of its evaluations."""

    asked: list[tuple[Snapshot, Snapshot, Any]]

    def __init__(self, contract: Contract, parameters: ScriptedParameters) -> None:
        super().__init__(contract, parameters)
        self.asked = []

    def judge(self, previous: Snapshot, current: Snapshot, applied: Any) -> TaskResult:
        self.asked.append((previous, current, applied))
        return super().judge(previous, current, applied)


@dataclass(frozen=True, kw_only=True)
class NoParameters:
    """A task without parameters."""


class Running:
    """Never ends."""

    version = 1
    terms: tuple[str, ...] = ("step",)
    Parameters = NoParameters
    verdict = Verdict()

    def __init__(self, contract: Contract, parameters: NoParameters) -> None:
        pass

    def judge(self, previous: Snapshot, current: Snapshot, applied: Any) -> TaskResult:
        return TaskResult(reward=0.0, verdict=self.verdict, terms={"step": 0.0})


class Succeeding(Running):
    verdict = Verdict.succeeded()


def pose(topic: str) -> dict[str, Any]:
    position = {"unit": "m", "low": -1.0, "high": 1.0}
    kind = "geometry_msgs/msg/PoseStamped"
    return {"topic": topic, "type": kind, "fields": {"position": position}, "max_age_s": 0.15}


def document() -> dict[str, Any]:
    """Return the contract as a document with two joints, a goal, a masked beacon, and a truth for the evaluator."""
    joint = {"position": [-2.0, 2.0], "velocity": VELOCITY, "acceleration": ACCELERATION, "deceleration": DECELERATION}
    return {
        "contract": "embodied_env/1",
        "name": "scripted",
        "version": 1,
        "control_period_s": PERIOD_S,
        "episode": {"horizon_steps": 10, "kind": "time_limit"},
        "sensors": {
            "joints": {
                "topic": "joint_states",
                "type": "sensor_msgs/msg/JointState",
                "fields": {"position": {"joints": list(JOINTS), "unit": "rad", "low": -3.0, "high": 3.0}},
                "max_age_s": 0.15,
            },
            "beacon": {**pose("beacon"), "mask": True},
            "goal": pose("goal"),
            "truth": {
                "topic": "truth",
                "type": "sensor_msgs/msg/Range",
                "fields": {"range": {"unit": "m", "low": 0.0, "high": 4.0}},
                "max_age_s": 0.15,
                "visibility": "evaluator",
            },
        },
        "actuators": {
            "arm": {
                "topic": "commands",
                "type": "std_msgs/msg/Float64MultiArray",
                "command": "position_delta",
                "joints": {name: dict(joint) for name in JOINTS},
            }
        },
        "safety": {"margins": {"position": 0.0, "velocity": 1.0, "acceleration": 1.0}},
        "reset_options": {
            "goal": {"type": "vector", "low": [0.1, 0.1, 0.1], "high": [0.5, 0.5, 0.5]},
            "load": {"type": "scalar", "low": 0.0, "high": 2.0, "visibility": "evaluator"},
        },
        "task": {"type": "scripted_tasks:Scripted"},
        "backends": {"fake": {}},
    }


def contract(*, task: dict[str, Any] | None = None, **changes: Any) -> Contract:
    """Return the contract with `changes` by dotted path with ``__`` for a dot (``episode__kind="finite_horizon"``)."""
    plain = document()
    plain["task"].update(task or {})
    for path, value in changes.items():
        node = plain
        *way, last = path.split("__")
        for key in way:
            node = node[key]
        node[last] = value
    return parse_contract(json.dumps(plain))


def stepper_of(the_contract: Contract, backend: FakeBackend, clock: Clock, **options: Any) -> Stepper:
    return Stepper(the_contract, backend, load_task(the_contract, trust=True), clock=clock, **options)


class Scene:
    """A stepper over the fake world that exposes the `clock`, `backend`, `stepper` and `sent` that a test inspects."""

    def __init__(self, the_contract: Contract | None = None, *, backend: Any = FakeBackend, **options: Any) -> None:
        self.contract = the_contract or contract()
        self.clock = options.pop("clock", None) or ManualClock()
        own = {key: options.pop(key) for key in ("observers", "evaluator_info", "filters") if key in options}
        self.backend = backend(self.contract, clock=self.clock, **options)
        self.stepper = stepper_of(self.contract, self.backend, self.clock, **own)

    @property
    def sent(self) -> list[Any]:
        """Return every published command."""
        return self.backend.sent

    def reset(self, *, seed: int = 1, **options: Any) -> tuple[Any, Any]:
        """Start an episode."""
        return self.stepper.reset(world_seed=seed, options=options, seeded=True)

    def step(self, action: Any = (0.0, 0.0)) -> Any:
        """Take one step, and return its transition."""
        self.stepper.begin(
            action if isinstance(action, np.ndarray) else list(action) if isinstance(action, tuple) else action
        )
        return self.stepper.finish()

    def run(self, steps: int, action: Any = (0.0, 0.0)) -> Any:
        """Take several steps, and return the last transition."""
        return [self.step(action) for _ in range(steps)][-1]

    def close(self) -> None:
        self.stepper.close()


class SlowBackend(FakeBackend):
    """Takes `send_ns` to send and `world_ns` to move, on a manual clock."""

    def __init__(
        self, the_contract: Contract, *, clock: ManualClock, send_ns: int = 0, world_ns: int = 0, **options: Any
    ) -> None:
        super().__init__(the_contract, clock=clock, **options)
        self._manual, self.send_ns, self.world_ns = clock, send_ns, world_ns

    def send(self, command: Any) -> Any:
        self._manual.advance_ns(self.send_ns)
        return super().send(command)

    def advance(self, target_ns: Any, deadline_ns: Any) -> None:
        self._manual.advance_ns(self.world_ns)
        super().advance(target_ns, deadline_ns)


class FailingResets(FakeBackend):
    """Its resets with these numbers (from 1) fail."""

    failing: tuple[int, ...] = (1,)
    resets = 0

    def reset(self, request: Any, deadline_ns: Any) -> Snapshot:
        self.resets += 1
        if self.resets in self.failing:
            raise BackendNotReadyError("not awake yet")
        return super().reset(request, deadline_ns)
