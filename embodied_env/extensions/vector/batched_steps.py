"""Take ordinary steps of several slots as arrays, bit for bit as one by one.

A step is ordinary if nothing about it is unusual (`docs/reference/vector.md` lists the conditions). Every other step,
and every reset, is taken by the slot's own environment. Until the next step begins, the state before the last one is
kept: the slot's own environment repeats it when its state is read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import Env
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from embodied_env.backends.mujoco_backend import MujocoBackend
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.core.code_types import TERMINATED_REASONS, end_kind
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.types import FloatArray, TaskResult, Verdict
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.transition_builder import copy_action
from embodied_env.errors import TaskError
from embodied_env.extensions.vector.batched_gate import BatchedGate, states_after
from embodied_env.extensions.vector.batched_info import BatchedTransitions
from embodied_env.extensions.vector.batched_judging import BatchedGapPolicy, is_judged_at_once, judge_steps
from embodied_env.extensions.vector.batched_slots import BatchedSlots, SlotStates, SlotStepper, UpToDateStepper
from embodied_env.extensions.vector.batched_types import (
    BoolArray,
    CommandStateBatch,
    IntArray,
    SafetyContextBatch,
    SnapshotBatch,
    StepResults,
    TaskResultBatch,
)
from embodied_env.extensions.vector.batched_worlds import SlotBackend, WorldBatch
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.action_parsing import MalformedActionError, parse_action
from embodied_env.tasks.judging import judge_step
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.ledger import StepEvent, event_of_mark

if TYPE_CHECKING:
    from embodied_env.extensions.vector.batched_record import BatchedRecorder

logger = logging.getLogger(__name__)

FEWEST_SLOTS = 5
"""Number of slots from which arrays save more than they cost."""


@dataclass(kw_only=True)
class ActionRows:
    """A copy of the agent's actions as rows by slot, and which of them are well-formed."""

    given: Any
    rows: FloatArray
    are_wellformed: BoolArray

    def __getitem__(self, slot: int) -> Any:  # noqa: ANN401 - an action
        """Return the agent's action for one slot."""
        given = self.given
        return {name: part[slot] for name, part in given.items()} if isinstance(given, dict) else given[slot]


class BatchedSteps:
    """Takes the ordinary steps of the slots of a vector environment, in `begin` and `finish`.

    Attributes:
        steppers: the steppers of the slots, which may be behind their last step.
        forget: drops the state of a slot, which must be reset next.
        taken: the number of steps taken as arrays.
    """

    def __init__(self, envs: Sequence[Env[Any, Any]], threads: int | None, recorder: BatchedRecorder | None) -> None:
        """Batch the slots, none of which is open yet.

        `supports` must hold. `recorder` records outside of `envs`.
        """
        self._bases = [cast("EmbodiedEnv", env.unwrapped) for env in envs]
        self._worlds = WorldBatch(len(envs), threads=threads)
        self.steppers = [self._replace_stepper(slot, base) for slot, base in enumerate(self._bases)]
        self._slots = BatchedSlots(envs, self.steppers)
        self.forget = self._slots.forget
        first, self._contract = self.steppers[0], self.steppers[0].contract
        self._clock, self._joints = first.clock, MeasuredJoints(self._contract, first.gate.layout.joints)
        self._layout, self._end_reasons = first.gate.layout, first.end_reasons
        self._gate = BatchedGate([each.gate for each in self.steppers])
        self._gap_policy = BatchedGapPolicy(self._contract)
        self._transitions = BatchedTransitions(first.transition_builder, self._layout, len(envs))
        self._required = required_sensors(self._contract)
        self._task = first.task if is_judged_at_once(first.task) else None
        if self._task is None:
            logger.warning("%s: the task judges slots one by one", self._contract.task.type)
        self._recorder = recorder
        self._no = np.zeros(len(envs), dtype=np.bool_)
        terms = dict.fromkeys(first.task.terms, math.nan)
        self._nothing = TaskResult(reward=0.0, verdict=Verdict.running(), terms=terms)  # of a task that fails
        self._rows = self._no  # the slots of the step under way
        self.taken = 0

    def _replace_stepper(self, slot: int, base: EmbodiedEnv) -> SlotStepper:
        """Replace the stepper of a slot's environment by one with the same parts, and return it."""
        old, world = base.stepper, cast("MujocoBackend", base.stepper.backend)
        options = {"clock": old.clock, "step_timeout_s": world.step_timeout_s, "delays": world.delays}
        stepper = SlotStepper(
            old.contract,
            SlotBackend(old.contract, worlds=self._worlds, slot=slot, **options),
            old.task,
            clock=old.clock,
            evaluator_info=base.evaluator_info,
            host_timing=old.transition_builder.host_timing,  # as its recorder has set it
        )
        base.stepper = cast("SlotStepper", UpToDateStepper(stepper, partial(self.sync, slot)))
        return stepper

    @staticmethod
    def supports(envs: Sequence[Env[Any, Any]]) -> bool:
        """Return whether the slots are in-process lockstep worlds, not wrapped or observed."""
        bases = [cast("EmbodiedEnv", env.unwrapped) for env in envs]
        first = bases[0]
        return all(
            (env is base or (isinstance(env, TimeLimit) and env.env is base))
            and type(base.stepper.backend) is MujocoBackend
            and base.clock_name in ("steady", "virtual")
            and (base.clock_name, base.evaluator_info, base.host_timing)
            == (first.clock_name, first.evaluator_info, first.host_timing)
            and not (base.render_mode in ("human", "rgb_array_list") or base.stepper.observers or base.stepper.stages)
            for env, base in zip(envs, bases, strict=True)
        ) and bool(first.stepper.transition_builder.sensors and BatchedGate.supports(first.stepper.gate))

    # ----------------------------------------------------------------------------------------------- step

    def parse(self, actions: Any) -> ActionRows | None:  # noqa: ANN401 - agents send anything
        """Return the rows of an array of actions or a dict of them by actuator, or None for others."""
        slices = self._layout.slices
        if len(slices) == 1:
            parts = [actions]
        elif isinstance(actions, dict) and actions.keys() == slices.keys():
            parts = [actions[name] for name in slices]
        else:
            return None
        for part, place in zip(parts, slices.values(), strict=True):
            if type(part) is not np.ndarray or part.dtype.kind not in "fiu":
                return None
            if part.shape != (len(self._no), place.stop - place.start):
                return None
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.concatenate(parts, axis=1, dtype=np.float64)
        are_wellformed = np.asarray(np.isfinite(rows).all(axis=1))
        return ActionRows(given=copy_action(actions), rows=rows, are_wellformed=are_wellformed)

    def parse_each(self, actions: Sequence[Any]) -> ActionRows:
        """Return the rows of actions of any kind."""
        parsed = ActionRows(
            given=[copy_action(action) for action in actions],
            rows=np.zeros((len(self._no), self._layout.size)),
            are_wellformed=self._no.copy(),
        )
        for slot, action in enumerate(actions):
            try:
                parsed.rows[slot], parsed.are_wellformed[slot] = parse_action(action, self._layout), True
            except MalformedActionError:
                continue
        return parsed

    def begin(self, actions: ActionRows, active: Sequence[int]) -> BoolArray:
        """Judge the actions of the `active` slots, publish the ordinary ones, and return which.

        The other active slots must be stepped by their own environments, the others are reset.
        """
        slots, is_active = self._slots, self._no.copy()
        is_active[active] = True
        for slot in np.flatnonzero(slots.is_loaded & ~is_active).tolist():
            slots.forget(slot)
        waiting = np.flatnonzero(is_active & ~slots.is_loaded).tolist()
        snapshots = slots.load([slot for slot in waiting if slot not in self._worlds.alone])
        for slot in snapshots:
            self._gate.load(slot)
        self._worlds.load(snapshots)
        slots.before = before = slots.state
        self._rows, self._actions = self._no, actions
        candidates = slots.is_loaded & actions.are_wellformed
        if candidates.any():
            self._stamps_ns = self._enter(before)
            self._reference = self._measured_reference(before)
            context = self._context(before.snapshot)
            period_s = self._contract.control_period_s
            self._approved = self._gate.judge(actions.rows, self._reference, period_s, context, candidates)
            self._stamps_ns[StepEvent.GATED] = self._now_ns(before)
            self._rows = self._approved.is_decided
            if self._rows.any():
                self._worlds.send(self._approved, np.flatnonzero(self._rows).tolist())
            self._stamps_ns[StepEvent.PUBLISHED] = self._now_ns(before)
        for slot in np.flatnonzero(slots.is_loaded & ~self._rows).tolist():
            self._gate.store(slot)
            slots.write(slot)
        return self._rows.copy()

    def finish(self) -> StepResults:
        """Step the worlds of the slots of `begin`, judge, and return the results.

        A slot that is lost, has a gap or whose task fails is not among them: its own environment must begin and finish
        the step, which its world has taken already.
        """
        slots, rows = self._slots, self._rows.copy()
        stamps_ns, period_ns = self._stamps_ns, self._contract.control_period_ns
        lost = self._worlds.step(np.flatnonzero(rows).tolist())
        rows[list(lost)] = False
        stamps_ns[StepEvent.OBSERVED] = self._now_ns(slots.before, period_ns)
        readings = self._worlds.read(np.flatnonzero(rows).tolist(), stamps_ns[StepEvent.OBSERVED])
        snapshot, are_valid = self._gap_policy.apply(readings)
        rows &= are_valid
        with np.errstate(all="ignore"):  # of undefined rows
            self._result, failed = self._judge(snapshot, rows)  # it removes the slots whose task fails
        for slot in np.flatnonzero(self._rows & ~rows).tolist():
            self._repeat(slot)
            if slot in failed:
                self.steppers[slot].judged = self._nothing, failed[slot]
        stamps_ns[StepEvent.RETURNED] = self._now_ns(slots.before, period_ns)
        slots.state = self._state_after(slots.before, snapshot, stamps_ns)
        slots.lag += rows
        self.taken += int(rows.sum())
        return self._results(rows)

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step in each slot (`Ledger.mark`)."""
        state, event = self._slots.state, event_of_mark(name)
        for slot in np.flatnonzero(~self._slots.is_loaded).tolist():
            self.steppers[slot].ledger.mark(name)
        state.stamps_ns[event] = self._now_ns(state)
        state.is_marked[:] = event is StepEvent.MARKED

    def sync(self, slot: int) -> None:
        """Let the slot's environment repeat its last step, for its state and last transition."""
        slots, stepper = self._slots, self.steppers[slot]
        if not slots.is_loaded[slot]:
            self._worlds.select(slot)
            return
        with deferred_signals():  # an interrupt here would lose steps
            if slots.lag[slot]:
                slots.lag[slot] -= 1
                self._repeat(slot)
                self._worlds.select(slot)
                stepper.judged = self._result.slot(slot), None
                stepper.begin(self._actions[slot])
                stepper.finish()
            else:
                slots.write(slot)
                self._worlds.select(slot)
            slots.write_stamps(slot)

    def close(self) -> None:
        """Write the state of every slot back. Idempotent."""
        for slot, base in enumerate(self._bases):
            self.sync(slot)
            base.stepper = self.steppers[slot]

    # -------------------------------------------------------------------------------------- parts of a step

    def _repeat(self, slot: int) -> None:
        """Restore the state before the last step, which the slot then takes without its world."""
        self._gate.store(slot, undo=True)
        self._slots.write(slot)
        self._worlds.hand_over(slot)

    def _now_ns(self, state: SlotStates, passed_ns: int = 0) -> Any:  # noqa: ANN401 - a number, or one for each slot
        """Return each slot's time, on a virtual clock `passed_ns` after the last observation."""
        return state.stamps_ns[StepEvent.OBSERVED] + passed_ns if self._clock.virtual else self._clock.now_ns()

    def _enter(self, before: SlotStates) -> IntArray:
        """Return the stamps of a step that begins now (`Ledger.enter_step`)."""
        stamps_ns, last = before.stamps_ns.copy(), before.stamps_ns
        returned_ns, entered_ns = last[StepEvent.RETURNED], last[StepEvent.ENTERED]
        stamps_ns[StepEvent.PREVIOUS_ENTERED] = np.where(before.is_first, returned_ns, entered_ns)
        stamps_ns[StepEvent.PREVIOUS_OBSERVED] = last[StepEvent.OBSERVED]
        stamps_ns[StepEvent.PREVIOUS_RETURNED] = returned_ns
        stamps_ns[StepEvent.ENTERED] = self._now_ns(before)
        return stamps_ns

    def _measured_reference(self, before: SlotStates) -> CommandStateBatch:
        """Return the references with measured positions of velocity joints (`update_measured`)."""
        is_velocity = self._layout.is_velocity
        if not is_velocity.any():
            return before.reference
        measured, ages_s = self._joints.measured(before.snapshot)
        positions = np.where(is_velocity, measured, before.reference.positions)
        slack = np.where(is_velocity, self._layout.limits.fastest, 0.0) * np.where(is_velocity, ages_s, 0.0)
        return replace(before.reference, positions=positions, slack=slack)

    def _context(self, snapshot: SnapshotBatch) -> SafetyContextBatch:
        samples, forces = snapshot.samples, self._contract.safety.forces.items()
        values = {name: samples[name].values[limit.field].astype(np.float64) for name, limit in forces}
        return SafetyContextBatch(
            qualities={name: samples[name].quality for name in self._required},
            ages_s={name: (snapshot.now_ns - samples[name].stamp_ns) / NS_PER_S for name in self._required},
            measured=self._joints.positions_or_nan(snapshot),
            forces={name: np.linalg.norm(rows, axis=1) for name, rows in values.items()},
        )

    def _judge(self, snapshot: SnapshotBatch, rows: BoolArray) -> tuple[TaskResultBatch, dict[int, TaskError]]:
        """Return the task's results, and the errors of failed slots, which leave `rows`."""
        previous, applied = self._slots.before.snapshot, self._approved.report.applied
        failed: dict[int, TaskError] = {}
        if self._task is not None:
            result = judge_steps(self._task, previous, snapshot, applied, np.flatnonzero(rows))
            if result is not None:
                return result, failed
        results = {}
        for slot in np.flatnonzero(rows).tolist():
            task = self.steppers[slot].task
            before = previous.slot(slot)
            if not self._slots.lag[slot]:
                before = self.steppers[slot].save().episode.snapshot  # with the report of a reset
            try:
                judged = judge_step(task, self._contract, before, snapshot.slot(slot), applied[slot])
            except TaskError as error:
                failed[slot], rows[slot] = error, False
            else:
                results[slot] = replace(judged, terms=dict(judged.terms))  # slots may share the dict of their task
        return TaskResultBatch.of(results, self.steppers[0].task.terms, len(rows)), failed

    def _state_after(self, before: SlotStates, snapshot: SnapshotBatch, stamps_ns: IntArray) -> SlotStates:
        applied = before.applied
        if self._contract.applied_actions:
            applied = np.concatenate((applied[:, 1:], self._approved.report.applied[:, np.newaxis]), axis=1)
        return SlotStates(
            history=(*before.history[1:], snapshot),
            reference=states_after(self._reference, self._approved, self._layout.is_velocity),
            seq=before.seq + 1,
            step_index=before.step_index + 1,
            stamps_ns=stamps_ns,
            is_first=self._no.copy(),
            is_marked=self._no.copy(),
            applied=applied,
        )

    def _results(self, rows: BoolArray) -> StepResults:
        slots, result = self._slots, self._result
        state, before = slots.state, slots.before
        is_over = result.success | (state.step_index >= self._contract.episode.horizon_steps)
        for others in (*result.failure.values(), *result.out_of_bounds.values()):
            is_over = is_over | others
        end_reason: NDArray[Any] = np.full(len(rows), "", dtype=object)
        terminated, truncated = self._no.copy(), slots.count(rows)
        end_reasons = {}
        for slot in np.flatnonzero(is_over & rows).tolist():
            end_reasons[slot] = reasons = self._end_reasons.find(result.slot(slot).verdict, int(state.step_index[slot]))
            end_reason[slot] = reasons[0]
            terminated[slot] = end_kind(end_reason[slot]) in TERMINATED_REASONS
            truncated[slot] |= not terminated[slot]
        results = StepResults(
            rows=rows,
            observation=self._transitions.observe(state.history, state.step_index, state.applied, slots.sampled),
            action=self._actions.given,
            reward=result.reward,
            terminated=terminated,
            truncated=truncated,
            info=self._transitions.info(
                state.snapshot,
                self._approved.report,
                state.stamps_ns,
                origin_ns=slots.origin_ns,
                is_first=before.is_first,
                is_marked=before.is_marked,
                intervention_share=self._gate.intervention_share,
                terms=result.terms,
                own={
                    "end_reason": end_reason,
                    "step_index": state.step_index,
                    "episode_index": slots.episode_index,
                    "instruction": slots.instruction.copy(),
                },
                render_ns=self._worlds.render_ns,
            ),
            end_reasons=end_reasons,
            report=self._approved.report,
            stamps_ns=state.stamps_ns,
            is_marked=before.is_marked,
            snapshot=state.snapshot,
        )
        if self._recorder is not None:
            results.info = self._recorder.record(results, self._gate.findings(results.report, rows))
        return results
