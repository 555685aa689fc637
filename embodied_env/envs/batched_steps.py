"""Ordinary steps of several slots as arrays, bit for bit as their environments would take them one by one.

A step is ordinary if nothing about it is unusual (`docs/reference/vector.md` lists the conditions). Every other step,
and every reset, is taken by the slot's own environment. The arrays hold the state of a slot from `_load` until
`release` or `sync` writes it back; they keep the state before the last step, which the slot's own environment repeats
when its result is read in full.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from gymnasium import Env
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.backends.mujoco_batch import WorldBatch
from embodied_env.contract import SensorSpec
from embodied_env.contract.spaces import field_layouts
from embodied_env.core.batches import (
    BoolArray,
    CommandStateBatch,
    IntArray,
    SafetyContextBatch,
    SampleBatch,
    SnapshotBatch,
    TaskResultBatch,
)
from embodied_env.core.clock import NS_PER_S, VirtualClock
from embodied_env.core.codes import TERMINATED_REASONS, Quality, end_kind, order_end_reasons
from embodied_env.core.latency.ledger import LedgerState, StepEvent
from embodied_env.core.types import CommandState, FloatArray, Sample, Snapshot
from embodied_env.envs.batched_info import BatchedTransitions
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.stacked_infos import stack_rows
from embodied_env.envs.stepper import StepState
from embodied_env.envs.transition_builder import Info, Observation, copy_action
from embodied_env.errors import TaskError
from embodied_env.safety.action_parsing import MalformedActionError, parse_action
from embodied_env.safety.approved_commands import states_after
from embodied_env.safety.batched_gate import BatchedGate
from embodied_env.safety.interlocks import required_sensors
from embodied_env.tasks import BatchedTask
from embodied_env.tasks.judging import judge_step, judge_steps

_NO_LIMIT = np.iinfo(np.int64).max
_CLOCKS = ("steady", "virtual")


@dataclass(kw_only=True)
class ActionRows:
    """The actions of a step in rows by slot. `given`: copies of those of the agent."""

    values: FloatArray
    are_wellformed: BoolArray
    given: Any

    def given_to(self, slot: int) -> Any:  # noqa: ANN401 - an action
        """Return the agent's action for one slot."""
        if isinstance(self.given, dict):
            return {name: part[slot] for name, part in self.given.items()}
        return self.given[slot]


logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SlotStates:
    """The state of each slot between two steps, in rows by slot. A step makes new arrays."""

    snapshot: SnapshotBatch
    reference: CommandStateBatch
    seq: IntArray  # of the last command
    step_index: IntArray
    elapsed_steps: IntArray  # of the `TimeLimit`
    stamps_ns: IntArray  # by `StepEvent`, (9, n_slots)
    is_first: BoolArray
    is_marked: BoolArray
    applied: FloatArray  # (n_slots, count, n_joints), oldest first
    histories: dict[tuple[str, str], NDArray[Any]]  # `batched_info.Histories`


@dataclass(kw_only=True)
class StepResults:
    """The results of the slots that have taken the step as arrays, in rows by slot."""

    rows: BoolArray
    observation: Observation
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    info: Info  # nested arrays without masks

    def infos(self, rows: BoolArray) -> Info:
        """Return the infos of `rows`, stacked with masks."""
        return stack_rows(self.info, rows) if rows.any() else {}

    def final(self, rows: BoolArray) -> Info:
        """Return ``final_obs`` and ``final_info`` of `rows`."""
        observations = np.full(len(rows), None, dtype=object)
        for slot in np.flatnonzero(rows):
            observations[slot] = {key: values[slot].copy() for key, values in self.observation.items()}
        infos = {"final_obs": observations, "final_info": self.infos(rows)}
        return {**infos, **{f"_{key}": rows.copy() for key in infos}}


class BatchedSteps:
    """Takes the ordinary steps of the slots of a vector environment, in `begin` and `finish`.

    Attributes:
        executor: the threads that compute the worlds, or None.
        taken: the number of steps taken as arrays.
    """

    def __init__(self, envs: Sequence[Env[Any, Any]], threads: int | None) -> None:
        """Batch the slots, none of which is open yet; `supports` must hold."""
        self._bases = [cast("EmbodiedEnv", env.unwrapped) for env in envs]
        self._limits = [env if isinstance(env, TimeLimit) else None for env in envs]
        self._steppers = [base.stepper for base in self._bases]
        self._parts = [stepper.parts for stepper in self._steppers]
        first, contract, n_slots = self._parts[0], self._bases[0].contract, len(envs)
        self._contract, self._n_slots, self._joints = contract, n_slots, first.joints
        self._layout = layout = first.gate.layout
        self._builder = first.transitions
        self._gate = BatchedGate([parts.gate for parts in self._parts])
        self._worlds = WorldBatch([cast("MujocoBackend", parts.backend) for parts in self._parts], threads=threads)
        self.executor = self._worlds.executor
        self._transitions = BatchedTransitions(self._builder, layout, n_slots)
        self._is_virtual = first.clock.virtual
        self._has_velocity = bool(layout.is_velocity.any())
        self._fastest = np.where(layout.is_velocity, layout.limits.velocity, 0.0)
        self._required = required_sensors(contract)
        self._forces = {name: limit.field for name, limit in contract.safety.forces.items()}
        self._checks = {name: _SensorCheck(name, sensor) for name, sensor in contract.sensors.items()}
        self._lengths = {
            (name, layout.field): layout.history
            for name, sensor in contract.sensors.items()
            for layout in field_layouts(name, sensor)
            if layout.history is not None
        }
        self._max_elapsed = np.array([_NO_LIMIT if each is None else each._max_episode_steps for each in self._limits])  # noqa: SLF001 - Gymnasium has no accessor
        self._task = first.task if isinstance(first.task, BatchedTask) else None
        if self._task is None:
            logger.info("%s: a task without judge_batch judges slots one by one", contract.task.type)
        self._zeros, self._no = np.zeros(n_slots), np.zeros(n_slots, dtype=np.bool_)
        self._is_loaded, self._rows = self._no.copy(), self._no.copy()
        self._lag = np.zeros(n_slots, dtype=np.int64)  # steps that the slot's own environment has not seen
        self._episode_index, self._origin_ns = np.zeros((2, n_slots), dtype=np.int64)
        self._sampled: dict[str, FloatArray] = {}  # the observed reset options
        joints = np.zeros((n_slots, layout.size))
        self._state = SlotStates(
            snapshot=SnapshotBatch(now_ns=np.zeros(n_slots, dtype=np.int64), samples={}),
            reference=CommandStateBatch(positions=joints, velocities=joints.copy(), accelerations=joints.copy()),
            seq=np.zeros(n_slots, dtype=np.int64),
            step_index=np.zeros(n_slots, dtype=np.int64),
            elapsed_steps=np.zeros(n_slots, dtype=np.int64),
            stamps_ns=np.zeros((len(StepEvent), n_slots), dtype=np.int64),
            is_first=self._no.copy(),
            is_marked=self._no.copy(),
            applied=np.zeros((n_slots, contract.applied_actions, layout.size)),
            histories=self._empty_histories(),
        )
        self._before, self._result = self._state, TaskResultBatch.of({}, (), n_slots)
        self._actions = ActionRows(values=joints, are_wellformed=self._no, given=joints)
        self.taken = 0
        for slot, base in enumerate(self._bases):
            base.before_access = partial(self.sync, slot)

    @staticmethod
    def supports(envs: Sequence[Env[Any, Any]]) -> bool:
        """Return whether these slots can be batched: in-process lockstep worlds, not wrapped, recorded or observed."""
        bases = [cast("EmbodiedEnv", env.unwrapped) for env in envs]
        first = bases[0].stepper.parts
        return (
            all(
                env is base or (isinstance(env, TimeLimit) and env.env is base)
                for env, base in zip(envs, bases, strict=True)
            )
            and all(type(base.stepper.parts.backend) is MujocoBackend for base in bases)
            and len({(base.clock_name, base.evaluator_info) for base in bases}) == 1
            and bases[0].clock_name in _CLOCKS
            and all(base.render_mode != "human" and not base.stepper.is_observed for base in bases)
            and bool(first.transitions.sensors)
            and BatchedGate.supports(bases[0].contract)
        )

    # ----------------------------------------------------------------------------------------------- step

    def parse(self, actions: Any) -> ActionRows | None:  # noqa: ANN401 - agents send anything
        """Return the rows of an array of actions, or a dict of them by actuator; None for another object."""
        layout = self._layout
        parts = [actions]
        if len(layout.slices) > 1:
            if not isinstance(actions, Mapping) or actions.keys() != layout.slices.keys():
                return None
            parts = [actions[name] for name in layout.slices]
        for part, place in zip(parts, layout.slices.values(), strict=True):
            if not isinstance(part, np.ndarray) or part.dtype.kind not in "fiu":
                return None
            if part.shape != (self._n_slots, place.stop - place.start):
                return None
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.concatenate(parts, axis=1, dtype=np.float64)
        is_finite = np.asarray(np.isfinite(rows).all(axis=1))
        return ActionRows(values=rows, are_wellformed=is_finite, given=copy_action(actions))

    def parse_each(self, actions: Sequence[Any]) -> ActionRows:
        """Return the actions as rows, and which of them are well-formed."""
        rows, is_row = np.zeros((self._n_slots, self._layout.size)), self._no.copy()
        for slot, action in enumerate(actions):
            try:
                rows[slot], is_row[slot] = parse_action(action, self._layout), True
            except MalformedActionError:
                continue
        return ActionRows(values=rows, are_wellformed=is_row, given=[copy_action(action) for action in actions])

    def begin(self, actions: ActionRows, slots: Sequence[int]) -> BoolArray:
        """Judge the actions of `slots` and publish the ordinary ones; return in which slots.

        The others are released: their own environments begin the step.
        """
        is_active = self._no.copy()
        is_active[slots] = True
        for slot in np.flatnonzero(self._is_loaded & ~is_active).tolist():
            self.forget(slot)  # it is reset instead
        self._load(np.flatnonzero(is_active & ~self._is_loaded).tolist())
        candidates = is_active & self._is_loaded & actions.are_wellformed
        self._before = before = self._state
        self._rows = self._no
        if candidates.any():
            self._actions = actions
            self._reference = self._measured_reference(before)
            self._stamps_ns = self._enter(before)
            context = self._context(before.snapshot)
            period_s = self._contract.control_period_s
            self._approved = self._gate.judge(actions.values, self._reference, period_s, context, candidates)
            self._stamps_ns[StepEvent.GATED] = self._now_ns(before)
            self._rows = self._approved.is_decided
            if self._rows.any():
                self._worlds.send(self._approved, np.flatnonzero(self._rows))
            self._stamps_ns[StepEvent.PUBLISHED] = self._now_ns(before)
        for slot in np.flatnonzero(is_active & self._is_loaded & ~self._rows).tolist():
            self._release(slot)
        return self._rows.copy()

    def finish(self) -> StepResults:
        """Step the worlds of the slots of `begin`, judge, and return the results.

        A slot that is lost, has a gap or whose task fails is not among them: its own environment, which is then a step
        behind its world, must begin and finish the step.
        """
        before, rows, stamps_ns = self._before, self._rows.copy(), self._stamps_ns
        lost = self._worlds.step(np.flatnonzero(rows))
        rows[list(lost)] = False
        stamps_ns[StepEvent.OBSERVED] = self._now_ns(before, self._contract.control_period_ns)
        snapshot = self._worlds.read(np.flatnonzero(rows), stamps_ns[StepEvent.OBSERVED])
        samples = {}
        for name, check in self._checks.items():
            is_valid, samples[name] = check.check(snapshot.samples[name], snapshot.now_ns)
            rows &= is_valid
        snapshot = SnapshotBatch(now_ns=snapshot.now_ns, samples=samples)
        self._result = self._judge(snapshot, rows)  # it removes the slots whose task fails
        self._rows, leftover = rows, self._rows & ~rows
        for slot in np.flatnonzero(leftover).tolist():
            self._release(slot, repeats=True)
        stamps_ns[StepEvent.RETURNED] = self._now_ns(before, self._contract.control_period_ns)
        self._state = self._advanced(before, snapshot, stamps_ns)
        self._lag += rows
        self.taken += int(rows.sum())
        return self._results(rows)

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step in each slot."""
        event, is_policy = (StepEvent.MARKED, True) if name == "policy" else (StepEvent.RETURNED, False)
        self._state.stamps_ns[event] = self._now_ns(self._state)
        self._state.is_marked[:] = is_policy
        for slot in np.flatnonzero(~self._is_loaded).tolist():
            self._steppers[slot].mark(name)

    def sync(self, slot: int) -> None:
        """Let the slot's own environment repeat its last step, so that it has its state and its last transition."""
        if not self._is_loaded[slot]:
            return
        stepper, limit = self._steppers[slot], self._limits[slot]
        if self._lag[slot]:
            self._lag[slot] -= 1
            action, result = self._actions.given_to(slot), self._result.slot(slot)
            self._release(slot, repeats=True)
            stepper.begin(action)
            stepper.finish(result)
        else:
            self._is_loaded[slot] = False
        stepper.ledger_state = self._ledger_state(self._state, slot)
        if limit is not None:
            limit._elapsed_steps = int(self._state.elapsed_steps[slot])  # noqa: SLF001 - Gymnasium has no accessor

    def forget(self, slot: int) -> None:
        """Drop the state of a slot that is reset."""
        if self._is_loaded[slot]:
            self._is_loaded[slot] = False
            self._steppers[slot].last_transition = None
            self._set_clock(slot, self._state)

    def close(self) -> None:
        """Release every slot, and end the threads. Idempotent."""
        for slot, base in enumerate(self._bases):
            self.sync(slot)
            base.before_access = None
        self._worlds.close()

    # -------------------------------------------------------------------------------------- parts of a step

    def _enter(self, before: SlotStates) -> IntArray:
        """Return the stamps of a step that begins now (`Ledger.enter_step`)."""
        stamps_ns, last = np.empty_like(before.stamps_ns), before.stamps_ns
        stamps_ns[StepEvent.PREVIOUS_ENTERED] = np.where(
            before.is_first, last[StepEvent.RETURNED], last[StepEvent.ENTERED]
        )
        stamps_ns[StepEvent.PREVIOUS_OBSERVED] = last[StepEvent.OBSERVED]
        stamps_ns[StepEvent.PREVIOUS_RETURNED] = last[StepEvent.RETURNED]
        stamps_ns[StepEvent.MARKED] = last[StepEvent.MARKED]
        stamps_ns[StepEvent.ENTERED] = self._now_ns(before)
        return stamps_ns

    def _now_ns(self, state: SlotStates, passed_ns: int = 0) -> Any:  # noqa: ANN401 - a number, or one for each slot
        """Return the time of each slot's clock; a virtual one is `passed_ns` after the last observation."""
        return state.stamps_ns[StepEvent.OBSERVED] + passed_ns if self._is_virtual else self._parts[0].clock.now_ns()

    def _measured_reference(self, before: SlotStates) -> CommandStateBatch:
        """Return the references with the measured positions of joints commanded by velocity (`update_measured`)."""
        if not self._has_velocity:
            return before.reference
        snapshot, is_velocity = before.snapshot, self._layout.is_velocity
        ages_s = np.zeros_like(before.reference.positions)
        for sensor, (_, joints) in self._joints.by_sensor.items():
            ages_s[:, joints] = ((snapshot.now_ns - snapshot.samples[sensor].stamp_ns) / NS_PER_S)[:, np.newaxis]
        positions = np.where(is_velocity, self._measured(snapshot, 0.0), before.reference.positions)
        return replace(before.reference, positions=positions, slack=self._fastest * np.where(is_velocity, ages_s, 0.0))

    def _measured(self, snapshot: SnapshotBatch, unknown: float) -> FloatArray:
        positions = np.full((self._n_slots, self._layout.size), unknown)
        for sensor, (indices, joints) in self._joints.by_sensor.items():
            positions[:, joints] = snapshot.samples[sensor].values["position"][:, indices]
        return positions

    def _context(self, snapshot: SnapshotBatch) -> SafetyContextBatch:
        samples = snapshot.samples
        return SafetyContextBatch(
            qualities={name: samples[name].quality for name in self._required},
            ages_s={name: (snapshot.now_ns - samples[name].stamp_ns) / NS_PER_S for name in self._required},
            measured=self._measured(snapshot, np.nan),
            action_age_s=self._zeros,
            latency_s=self._zeros,
            forces={
                name: np.linalg.norm(samples[name].values[field].astype(np.float64), axis=1)
                for name, field in self._forces.items()
            },
        )

    def _judge(self, snapshot: SnapshotBatch, rows: BoolArray) -> TaskResultBatch:
        """Return the task's results; a slot whose task fails is removed from `rows`."""
        previous, applied = self._before.snapshot, self._approved.report.applied
        if self._task is not None:
            result = judge_steps(self._task, previous, snapshot, applied, np.flatnonzero(rows))
            if result is not None:
                return result
        results = {}
        for slot in np.flatnonzero(rows).tolist():
            own, task = self._steppers[slot].step_state.snapshot, self._parts[slot].task
            before = previous.slot(slot) if self._lag[slot] else own
            try:
                results[slot] = judge_step(task, self._contract, before, snapshot.slot(slot), applied[slot].copy())
            except TaskError:
                rows[slot] = False
        return TaskResultBatch.of(results, self._parts[0].task.terms, self._n_slots)

    def _advanced(self, before: SlotStates, snapshot: SnapshotBatch, stamps_ns: IntArray) -> SlotStates:
        histories = before.histories
        if histories:
            newest = {
                key: snapshot.samples[key[0]].values[key[1]] if key[1] else snapshot.samples[key[0]].stamp_ns
                for key in histories
            }
            histories = {key: _shifted(rows, newest[key]) for key, rows in histories.items()}
        count = self._contract.applied_actions
        return SlotStates(
            snapshot=snapshot,
            reference=states_after(self._reference, self._approved, self._layout.is_velocity),
            seq=before.seq + 1,
            step_index=before.step_index + 1,
            elapsed_steps=before.elapsed_steps + 1,
            stamps_ns=stamps_ns,
            is_first=self._no.copy(),
            is_marked=self._no.copy(),
            applied=_shifted(before.applied, self._approved.report.applied) if count else before.applied,
            histories=histories,
        )

    def _results(self, rows: BoolArray) -> StepResults:
        state, result, builder = self._state, self._result, self._builder
        is_over = result.success | (state.step_index >= self._contract.episode.horizon_steps)
        for slots in (*result.failure.values(), *result.out_of_bounds.values()):
            is_over = is_over | slots
        end_reason = np.full(self._n_slots, "", dtype=object)
        terminated, truncated = self._no.copy(), state.elapsed_steps >= self._max_elapsed
        for slot in np.flatnonzero(is_over & rows).tolist():
            reasons = builder.ordinary_end_reasons(result.slot(slot).verdict, int(state.step_index[slot]))
            end_reason[slot] = reason = order_end_reasons(reasons)[0]
            terminated[slot] = is_terminated = end_kind(reason) in TERMINATED_REASONS
            truncated[slot] |= not is_terminated
        transitions, snapshot = self._transitions, state.snapshot
        return StepResults(
            rows=rows,
            observation=transitions.observe(snapshot, state.histories, state.step_index, state.applied, self._sampled),
            reward=result.reward,
            terminated=terminated,
            truncated=truncated,
            info=transitions.info(
                snapshot,
                self._approved.report,
                state.stamps_ns,
                origin_ns=self._origin_ns,
                is_first=self._before.is_first,
                is_marked=self._before.is_marked,
                intervention_share=self._gate.intervention_share,
                terms=result.terms,
                own={"end_reason": end_reason, "step_index": state.step_index, "episode_index": self._episode_index},
            ),
        )

    # ------------------------------------------------------------------------------- the slots' own environments

    def _load(self, slots: Sequence[int]) -> None:
        """Read the state of slots from their own environments where the next step may be ordinary."""
        states = {slot: self._steppers[slot].step_state for slot in slots if self._steppers[slot].is_ordinary}
        if not states:
            return
        self._worlds.load({slot: own.snapshot for slot, own in states.items()})
        before, latest = self._state.snapshot.samples, self._worlds.latest
        samples = {}
        for name, sample in latest.samples.items():  # other slots keep the quality after the gap policy
            quality = before[name].quality.copy() if before else np.zeros_like(sample.quality)
            quality[list(states)] = [own.snapshot.samples[name].quality for own in states.values()]
            samples[name] = replace(sample, quality=quality)
        self._state.snapshot = SnapshotBatch(now_ns=latest.now_ns, samples=samples)
        reference = self._state.reference  # its arrays may be those of a report
        self._state.reference = CommandStateBatch(
            positions=reference.positions.copy(),
            velocities=reference.velocities.copy(),
            accelerations=reference.accelerations.copy(),
        )
        for slot, own in states.items():
            self._load_slot(slot, own)

    def _load_slot(self, slot: int, own: StepState) -> None:
        state, limit = self._state, self._limits[slot]
        self._gate.load(slot)
        reference, into = own.reference, state.reference
        into.positions[slot], into.velocities[slot] = reference.positions, reference.velocities
        into.accelerations[slot] = 0.0 if reference.accelerations is None else reference.accelerations
        state.seq[slot], state.step_index[slot] = reference.seq, own.step_index
        state.elapsed_steps[slot] = 0 if limit is None else limit._elapsed_steps  # noqa: SLF001 - as above
        state.stamps_ns[:, slot], state.is_first[slot], state.is_marked[slot] = own.ledger
        if own.applied:
            state.applied[slot] = own.applied
        for (sensor, field), rows in state.histories.items():
            samples = [snapshot.samples[sensor] for snapshot in list(own.history)[-rows.shape[1] :]]
            rows[slot] = [each.values[field] if field else each.stamp_ns for each in samples]
        self._episode_index[slot], self._origin_ns[slot] = own.episode_index, own.origin_ns
        for name in self._builder.observations.observed_options:
            value = np.asarray(own.sampled[name], dtype=np.float64).reshape(-1)
            self._sampled.setdefault(name, np.zeros((self._n_slots, value.size)))[slot] = value
        self._lag[slot], self._is_loaded[slot] = 0, True

    def _release(self, slot: int, *, repeats: bool = False) -> None:
        """Write the state before the last `begin` back to the slot's own environment, which takes that step then.

        `repeats`: its world has taken the step already.
        """
        before, stepper, limit = self._before, self._steppers[slot], self._limits[slot]
        self._is_loaded[slot] = False
        self._gate.store(slot, undo=repeats)
        self._set_clock(slot, before)
        if self._lag[slot]:
            stepper.step_state = self._step_state(before, slot)
        else:
            stepper.ledger_state = self._ledger_state(before, slot)
        if limit is not None:
            limit._elapsed_steps = int(before.elapsed_steps[slot])  # noqa: SLF001 - as above
        if repeats:
            self._worlds.hand_over(slot)

    def _set_clock(self, slot: int, state: SlotStates) -> None:
        clock = self._parts[slot].clock
        if isinstance(clock, VirtualClock):
            clock.advance_ns(int(state.stamps_ns[StepEvent.OBSERVED, slot]) - clock.now_ns())

    def _ledger_state(self, state: SlotStates, slot: int) -> LedgerState:
        return tuple(state.stamps_ns[:, slot].tolist()), bool(state.is_first[slot]), bool(state.is_marked[slot])

    def _step_state(self, state: SlotStates, slot: int) -> StepState:
        reference = state.reference
        return StepState(
            snapshot=state.snapshot.slot(slot),
            reference=CommandState(
                positions=reference.positions[slot].copy(),
                velocities=reference.velocities[slot].copy(),
                accelerations=reference.accelerations[slot].copy(),
                seq=int(state.seq[slot]),
                epoch=self._steppers[slot].epoch,
            ),
            step_index=int(state.step_index[slot]),
            ledger=self._ledger_state(state, slot),
            history=self._history(state, slot),
            applied=list(state.applied[slot].copy()),
            episode_index=int(self._episode_index[slot]),
            origin_ns=int(self._origin_ns[slot]),
            sampled={},
        )

    def _history(self, state: SlotStates, slot: int) -> list[Snapshot]:
        """Return snapshots with the fields that observations show the history of."""
        longest = max((rows.shape[1] for rows in state.histories.values()), default=0)
        snapshots = []
        for back in range(longest, 0, -1):
            samples: dict[str, Sample] = {}
            for sensor, _ in self._lengths:
                rows = {
                    field: rows
                    for (name, field), rows in state.histories.items()
                    if name == sensor and back <= rows.shape[1]
                }
                if rows:
                    stamp_ns = int(rows.pop("")[slot, -back])
                    values = {field: each[slot, -back].copy() for field, each in rows.items()}
                    samples[sensor] = Sample(sensor=sensor, values=values, stamp_ns=stamp_ns, arrival_ns=0)
            snapshots.append(Snapshot(now_ns=0, samples=samples))
        return snapshots or [state.snapshot.slot(slot)]

    def _empty_histories(self) -> dict[tuple[str, str], NDArray[Any]]:
        histories: dict[tuple[str, str], NDArray[Any]] = {}
        for (name, field), length in self._lengths.items():
            layout = next(each for each in field_layouts(name, self._contract.sensors[name]) if each.field == field)
            histories[name, field] = np.zeros((self._n_slots, length, *layout.shape), dtype=layout.dtype)
            longest = max(length, histories[name, ""].shape[1] if (name, "") in histories else 0)
            histories[name, ""] = np.zeros((self._n_slots, longest), dtype=np.int64)
        return histories


class _SensorCheck:
    """The gap policy for a reading of one sensor in each slot."""

    def __init__(self, name: str, spec: SensorSpec) -> None:
        self._max_age_ns = spec.max_age_s * 1e9
        self._bounds: list[tuple[str, NDArray[Any], NDArray[Any]]] = []
        for layout in field_layouts(name, spec):
            low, high = layout.low, layout.high
            if layout.dtype.kind in "iu":
                limits = np.iinfo(layout.dtype)
                if (low <= limits.min).all() and (high >= limits.max).all():
                    continue
            else:  # with finite bounds, one comparison also rejects NaN and infinity
                largest = np.finfo(layout.dtype).max
                low, high = np.maximum(low, -largest), np.minimum(high, largest)
            self._bounds.append((layout.field, low.reshape(-1), high.reshape(-1)))

    def check(self, sample: SampleBatch, now_ns: IntArray) -> tuple[BoolArray, SampleBatch]:
        """Return the slots whose reading is valid, and the sample with the quality of each of them."""
        age_ns = now_ns - sample.stamp_ns
        is_valid = (age_ns >= 0) & (age_ns <= self._max_age_ns) & (sample.quality == Quality.OK)
        is_inside = np.ones_like(is_valid)
        for field, low, high in self._bounds:
            values = sample.values[field].reshape(len(is_valid), -1)
            is_within = (values >= low) & (values <= high)
            if not is_within.all():
                is_inside &= is_within.all(axis=1)
                is_valid &= np.isfinite(values).all(axis=1)
        if is_inside.all():
            return is_valid, sample
        quality = np.where(is_inside, sample.quality, Quality.OUT_OF_RANGE).astype(np.int8)
        return is_valid, replace(sample, quality=quality)


def _shifted(rows: NDArray[Any], newest: NDArray[Any]) -> NDArray[Any]:
    """Return the history without its oldest entry, with the newest: shape (n_slots, length, ...)."""
    return np.concatenate((rows[:, 1:], newest[:, np.newaxis]), axis=1)
