"""External inputs of a step, measured or replayed, such as time, e-stops and latches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from embodied_env.backends.backend import Delayed, Recorded
from embodied_env.contract import Contract
from embodied_env.contract.bounded_json import plain_copy
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.contract.runtime_values import check_instruction
from embodied_env.contract.value_checks import one_of
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.safety_input_state import InputStates
from embodied_env.core.types import (
    CHUNK,
    OWN_ANNOTATIONS,
    ActionChunk,
    CommandState,
    ExternalInputs,
    Finding,
    SafetyContext,
    SensorStatus,
    SentCommand,
    Snapshot,
)
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.stepper_state import EpisodeState
from embodied_env.errors import UsageError
from embodied_env.safety.action_parsing import MalformedActionError, parse_action, parse_chunk
from embodied_env.timing.clock import NS_PER_S

if TYPE_CHECKING:
    from embodied_env.envs.action_stages import ActionStages

_NAME = re.compile("[a-z][a-z0-9_]{0,63}")
_MOST_NAMES = 32  # accounts in a step
_MOST_CHARACTERS = 16384  # length of an account as JSON
_NO_FORCES: Mapping[str, float] = {}


class ExternalInputsSource:
    """Reads everything in a step that does not follow from actions and readings.

    In a replay (not `is_live`) the backend supplies the recorded values. After the last recorded step they are measured
    again, and the backend ends the episode.
    """

    def __init__(self, guard: MotionGuard, joints: MeasuredJoints) -> None:
        contract, backend, capabilities = guard.contract, guard.backend, guard.backend.capabilities
        self._free_running, self._period_s = capabilities.free_running, contract.control_period_s
        self._gate, self._guard, self._clock = guard.gate, guard, guard.clock
        self._annotations: dict[str, Any] = {}  # accounts of the next step
        self._chunk: ActionChunk | None = None  # takes effect in the next step
        self._most_actions = 0 if contract.trajectory_steps is None else 1 + contract.trajectory_steps
        self._preview: list[list[float]] = []  # parsed actions from the next step on
        self._required: tuple[str, ...] = ()  # sensors of the policy in this episode
        self._instruction = ""  # prompt in force
        self._is_instructed = False  # it was changed during this episode
        self._is_refused = False
        self._contexts = SafetyContextBuilder(contract, joints)
        self._visible = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
        self._recorded = backend.playback if isinstance(backend, Recorded) else None
        self.is_live = self._recorded is None
        self._delays: Delayed | None = None
        if self.is_live and capabilities.injected and not capabilities.free_running:
            if not isinstance(backend, Delayed):
                raise TypeError(f"backend {backend.name} declares injected delays but has no inference_ns")
            self._delays = backend

    @property
    def instruction(self) -> str:
        """The prompt of the next step."""
        return self._instruction

    @property
    def is_empty(self) -> bool:
        """Whether nothing is annotated, previewed or required, and the prompt is that of the reset."""
        return not (self._annotations or self._preview or self._required or self._is_instructed)

    def begin_episode(self, instruction: str) -> None:
        """Start with this prompt, and discard what was attached to a step never taken."""
        self._annotations, self._chunk, self._preview, self._required = {}, None, [], ()
        self._instruction, self._is_instructed = instruction, False

    def instruct(self, instruction: str) -> None:
        """Set the prompt from the next step on, which has the one before in an annotation."""
        before, self._instruction = self._instruction, check_instruction(instruction)
        self._is_instructed = True
        if before != instruction:
            self._annotations.setdefault("instruction", {"before": before})

    def require(self, sensors: Iterable[str]) -> None:
        """Require valid readings of these sensors until the next reset, or raise UsageError."""
        names = tuple(sensors)
        for name in names:
            if name not in self._visible:
                raise UsageError(f"unknown sensor to require: {one_of(name, self._visible)}")
        self._required = names

    def annotate(self, name: str, values: Mapping[str, Any]) -> None:
        """Attach an account to the next step, or raise UsageError for one that JSON cannot express."""
        chunk = None
        if name == CHUNK and isinstance(values, Mapping) and "actions" in values:
            chunk = self._new_chunk(values)
            values = {key: value for key, value in values.items() if key != "actions"}
        account = _checked_account(name, values)
        if len(self._annotations) >= _MOST_NAMES and name not in self._annotations:
            raise UsageError(f"too many annotations of a step: {name!r} (expected at most {_MOST_NAMES})")
        self._annotations[name] = account
        if name == CHUNK:
            self._chunk = chunk

    def _new_chunk(self, account: Mapping[str, Any]) -> ActionChunk | None:
        """Return the chunk of an account, or None if any of its actions is malformed."""
        number, born = account.get("id"), account.get("born")
        if not (type(number) is int and type(born) is int and number >= 0 and born >= 0):
            expected = "expected the number of the chunk and of its step as id and born, from 0"
            raise UsageError(
                f"invalid annotation {CHUNK!r} with actions: id {number!r:.20}, born {born!r:.20} ({expected})"
            )
        actions = parse_chunk(account["actions"], self._gate.layout)
        return None if actions is None else ActionChunk(id=number, born=born, actions=actions)

    def apply_stages(self, stages: ActionStages, action: Any, episode: EpisodeState) -> Any:  # noqa: ANN401 - as an agent
        """Return the action after the stages, whose account goes with the next step.

        No stage acts on the actions of a played episode, which are those that the gate of its run received.
        """
        if episode.is_played:
            self._annotations["action_stages"] = {"skipped": list(stages.names)}
            return action
        action, account = stages.apply(action, episode.snapshot, self._guard.arbiter.reference)
        if account:
            self._annotations["action_stages"] = account
        return action

    def preview(self, actions: Iterable[Any]) -> None:
        """Store the actions from the next step on, or raise UsageError unless they are a sequence."""
        try:
            first = list(islice(actions, self._most_actions))
        except Exception:  # noqa: BLE001 - a foreign object may raise anything
            raise UsageError(f"invalid preview: {actions!r:.80} (expected a sequence of actions)") from None
        self._preview = []
        with suppress(MalformedActionError):
            for action in first:
                self._preview.append(parse_action(action, self._gate.layout))

    def take_preview(self, action: Any) -> list[list[float]]:  # noqa: ANN401 - any action of an agent
        """Return the previewed actions after their first, or none if `action` is another one."""
        preview, self._preview = self._preview, []
        self._is_refused = False
        if not preview:
            return []
        with suppress(MalformedActionError):
            self._is_refused = preview[0] != parse_action(action, self._gate.layout)
        if self._is_refused:
            remedy = "a wrapper changes actions; call preview with actions as they reach the environment"
            with suppress(UserWarning):  # a warning turned into an error must not stop the robot
                gymnasium.logger.warn(f"preview ignored: its first action is not that of the step; {remedy}")
            return []
        return preview[1:]

    def with_sent(self, inputs: ExternalInputs, sent: SentCommand) -> ExternalInputs:
        """Return the inputs of a step with its delay and the accounts of what was sent."""
        trajectory, delay = self._guard.arbiter.last.trajectory, self._guard.arbiter.delay
        if trajectory is None and delay is None and sent.report is None and not sent.annotations:
            return inputs
        annotations = {**inputs.annotations, **sent.annotations}
        if trajectory is not None:
            points = [state.positions.tolist() for state in trajectory.points]
            duration_s = (len(points) - 2) * self._period_s
            annotations["trajectory"] = {"previewed": trajectory.previewed, "refused": self._is_refused}
            annotations["trajectory"] |= {"duration_s": duration_s, "points": points}
        return replace(inputs, answer=sent.report, delay=delay, annotations=annotations)

    def begin_step(self, episode: EpisodeState, published: CommandState, dt_s: float) -> ExternalInputs:
        """Return the inputs of a step `dt_s` after the last command."""
        if self._recorded is not None:
            self._recorded.enter_step()
            if self._recorded.external_inputs is not None:
                return self._replayed(episode, published, dt_s, self._recorded.external_inputs)
        annotations: Mapping[str, Any]
        annotations, self._annotations = self._annotations, {}
        chunk, self._chunk = self._chunk, None
        if episode.step_index == 0:
            self._gate.begin_motion()
        if self._free_running and (account := self._guard.arbiter.take_setpoint_account()) is not None:
            annotations = {**annotations, "setpoints": account}
        return ExternalInputs(
            safety_context=self.safety_context(
                episode.snapshot, (episode.frozen_ns, episode.returned_ns), self._required
            ),
            latched=self._gate.latched if self._gate.is_latched else None,
            dt_s=dt_s,
            reference=published if self._free_running else None,
            limits=self._gate.changed,
            annotations=annotations,
            chunk=chunk,
            instruction=self._instruction,
        )

    def _replayed(
        self, episode: EpisodeState, published: CommandState, dt_s: float, recorded: ExternalInputs
    ) -> ExternalInputs:
        """Return the recorded inputs of a step after setting limits and latch as recorded."""
        self._gate.replay_limits(recorded.limits, is_first=episode.step_index == 0)
        if self._free_running:
            published, dt_s = recorded.reference or published, recorded.dt_s
            self._guard.watchdog.trips = recorded.watchdog_trips
            self._latch(recorded.latched)
        then = recorded.safety_context
        context = self._contexts.build(
            episode.snapshot,
            since_frozen_ns=round(then.latency_s * NS_PER_S),
            since_returned_ns=round(then.action_age_s * NS_PER_S),
            estops=self._guard.estops(),
            required=then.required,
        )
        return ExternalInputs(
            safety_context=context,
            latched=self._gate.latched,
            dt_s=dt_s,
            reference=published if self._free_running else None,
            limits=self._gate.changed,
            delay=recorded.delay,
            annotations=recorded.annotations,
            chunk=recorded.chunk,
            instruction=recorded.instruction,
        )

    def end_replayed_step(self) -> None:
        """Latch what was latched after the end reasons of the recorded step."""
        if self._recorded is not None and self._free_running and self._recorded.external_inputs is not None:
            self._latch(self._recorded.external_inputs.latched_after)

    def safety_context(
        self, snapshot: Snapshot, since_ns: tuple[int, int], required: tuple[str, ...] = ()
    ) -> SafetyContext:
        """Return the context in which a command that is based on `snapshot` is judged.

        `since_ns` are the times on the steady clock when the snapshot was frozen, and when the agent received it. In a
        lockstep world a snapshot ages only by injected delays. `required` are sensors in addition to those of the
        contract.
        """
        frozen_ns = returned_ns = 0
        if self._free_running:
            now_ns = self._clock.now_ns()
            frozen_ns, returned_ns = now_ns - since_ns[0], now_ns - since_ns[1]
        elif self._delays is not None:
            frozen_ns = returned_ns = self._delays.inference_ns
        return self._contexts.build(
            snapshot,
            since_frozen_ns=frozen_ns,
            since_returned_ns=returned_ns,
            estops=self._guard.estops() if self._guard.has_estops else {},
            required=required,
        )

    def _latch(self, latched: Finding | None) -> None:
        if latched is not None:
            self._gate.latch(latched)


def _checked_account(name: object, values: object) -> dict[str, Any]:
    """Return the values of an annotation in JSON types, sharing nothing with them."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"invalid name of an annotation: {name!r:.80} (expected lower-case letters, digits and _)")
    if name in OWN_ANNOTATIONS:
        raise UsageError(f"reserved name of an annotation: {name!r} (the environment writes it); use another name")
    if not isinstance(values, Mapping):
        raise UsageError(f"invalid annotation {name!r}: {values!r:.80} (expected a mapping of names to values)")
    try:
        account: dict[str, Any] = plain_copy(dict(values), max_characters=_MOST_CHARACTERS)
    except ValueError as error:
        raise UsageError(f"invalid annotation {name!r}: {error} (expected numbers, text and lists)") from None
    return account


class SafetyContextBuilder:
    """Builds the safety context of each step of one contract."""

    def __init__(self, contract: Contract, joints: MeasuredJoints) -> None:
        self._required = required_sensors(contract)
        self._forces = {name: limit.field for name, limit in contract.safety.forces.items()}
        self._joints = joints

    def build(
        self,
        snapshot: Snapshot,
        *,
        since_frozen_ns: int,
        since_returned_ns: int,
        estops: InputStates,
        required: tuple[str, ...] = (),
    ) -> SafetyContext:
        """Return the safety context of an action based on `snapshot`.

        The times since the snapshot was taken, and since the agent received it, are 0 in lockstep. `estops` are the
        states of the robot's safety inputs, `required` the sensors of the policy in addition to the contract's.
        """
        latency_s = since_frozen_ns / NS_PER_S
        samples, now_ns = snapshot.samples, snapshot.now_ns
        sensors = {}
        for name in dict.fromkeys((*self._required, *required)) if required else self._required:
            sample = samples[name]
            age_s = (now_ns - sample.stamp_ns) / NS_PER_S + latency_s
            sensors[name] = SensorStatus(quality=sample.quality, age_s=age_s)
        return SafetyContext(
            sensors=sensors,
            measured=self._joints.positions_or_nan(snapshot),
            action_age_s=since_returned_ns / NS_PER_S,
            latency_s=latency_s,
            estops=estops,
            required=required,
            clock_jump="" if snapshot.clock is None else snapshot.clock.jump,
            forces=self._measured_forces(snapshot) if self._forces else _NO_FORCES,
            snapshot=snapshot,
        )

    def _measured_forces(self, snapshot: Snapshot) -> dict[str, float]:
        return {
            name: float(np.linalg.norm(np.asarray(snapshot.samples[name].values[field], dtype=np.float64)))
            for name, field in self._forces.items()
        }
