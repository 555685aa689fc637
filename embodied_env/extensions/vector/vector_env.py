"""Step environments as a `VectorEnv` by beginning all steps before finishing any.

Each slot is an environment of `make`, with its own world, clock, gate and ledger. Results equal those of
`gymnasium.vector.SyncVectorEnv` over the same environments (`docs/reference/vector.md`), but worlds over a middleware
move at the same time, and ordinary steps of in-process worlds are taken as arrays (`extensions.vector.batched_steps`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from gymnasium import Env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_count, checked_flag, checked_path
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.env_options import DEFAULTS, MakeOptions
from embodied_env.envs.option_checks import changed_options, rebuild, resolve_contract, split_options
from embodied_env.envs.registration import VECTOR_ENTRY_POINT, make
from embodied_env.envs.stepper_state import check_open
from embodied_env.envs.transition_builder import Info
from embodied_env.errors import BackendError, ResetNeededError, SlotEndedError, UsageError
from embodied_env.extensions.vector.batched_steps import FEWEST_SLOTS, ActionRows, BatchedSteps
from embodied_env.extensions.vector.batched_types import StepResults
from embodied_env.extensions.vector.vector_slots import (
    PerSlot,
    checked_mask,
    checked_mode,
    checked_seeds,
    options_of_slots,
    unsupported_pacing,
)
from embodied_env.processes.signals import call_together

Observations = dict[str, NDArray[Any]]
SlotResult = tuple[Observations, Info]

if TYPE_CHECKING:
    from embodied_env.record import RecordTransitions

    _SyncVectorEnv = SyncVectorEnv[Observations, Any]
else:
    _SyncVectorEnv = SyncVectorEnv  # not generic before gymnasium 1.4


class VectorOptions(MakeOptions, total=False):
    """The options of `make_vec`, which describes them."""

    autoreset_mode: AutoresetMode | str
    per_slot: PerSlot | None
    threads: int | None
    copy: bool


_POLL_S = 1e-4
_MAX_POLLS = 500  # of each slot, before a step waits for one alone until its world is lost


class EmbodiedVectorEnv(_SyncVectorEnv):
    """N robots, each in a lockstep world of its own.

    Attributes:
        contract: the contract in force, the same in every slot.
        envs: the environment of each slot, in its wrappers (`max_episode_steps`, `record`).
        autoreset_mode: how a slot is reset whose episode has ended.
        copy: return copies of the observations, not the arrays that the next step overwrites.
    """

    def __init__(
        self,
        contract: str | Path | Contract | Mapping[str, str] | None = None,
        *,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        per_slot: PerSlot | None = None,
        threads: int | None = None,
        copy: bool = True,
        **options: Unpack[MakeOptions],
    ) -> None:
        """Create the slots of `make_vec`, without starting anything before the first `reset`."""
        slots = {"num_envs": num_envs, "autoreset_mode": autoreset_mode, "per_slot": per_slot}
        self._arguments = {**options, **slots, "threads": threads, "copy": copy}
        if per_slot is None:
            split_options(options, VectorOptions.__optional_keys__ | {"num_envs"}, caller="make_vec")
        record = options.pop("record", None)
        mode, copy = checked_mode(autoreset_mode), checked_flag("copy", copy)
        num_envs = checked_count("num_envs", num_envs, at_least=1)
        threads = None if threads is None else checked_count("threads", threads, at_least=0)
        if options.get("backend") == "real" or options.get("pacing") == "realtime":  # before the addresses of the slots
            raise unsupported_pacing("realtime", options.get("backend", "mujoco"))
        self._batched: BatchedSteps | None = None
        self.envs = []
        try:
            if contract is not None:
                contract = resolve_contract(contract)  # once for all slots
            for slot, own in enumerate(options_of_slots(num_envs, options, per_slot)):
                folder = None if record is None else checked_path("record", record) / f"slot_{slot}"
                self.envs.append(make(contract, record=folder, **own))
            self._bases = [cast("EmbodiedEnv", env.unwrapped) for env in self.envs]
            self._check_backend(self._bases[0], threads, is_recorded=record is not None)
            self._steppers = self._batched.steppers if self._batched else [base.stepper for base in self._bases]
            self._steps_taken = 0
            super().__init__([partial(_same, env) for env in self.envs], copy=copy, autoreset_mode=mode)
        except BaseException:
            self.close()
            raise
        self.contract = self._bases[0].contract
        self._was_reset = np.zeros(num_envs, dtype=np.bool_)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the constructor's arguments, so that no slot of a copy is opened."""
        return rebuild, (type(self), {**self._arguments, "contract": self.contract}, self.spec)

    def __repr__(self) -> str:
        first = self._bases[0]
        known = f"{self.contract.name} v{self.contract.version} ({self.contract.fingerprint[:12]})"
        return f"<{type(self).__name__} {known} on {first.backend_name}, {self.num_envs} slots>"

    @property
    def batched_share(self) -> float:
        """Share of the slots' steps that were taken as arrays, since the environment was made."""
        return 0.0 if self._batched is None else self._batched.taken / max(1, self._steps_taken)

    def _check_backend(self, first: EmbodiedEnv, threads: int | None, *, is_recorded: bool) -> None:
        if first.capabilities.free_running:
            raise unsupported_pacing(first.pacing, first.backend_name)
        if threads and first.backend_name != "mujoco":
            raise UsageError(f"unsupported threads with {first.backend_name} (expected mujoco)")
        envs = [cast("RecordTransitions", env).env for env in self.envs] if is_recorded else self.envs
        if len(envs) < FEWEST_SLOTS or not BatchedSteps.supports(envs):
            return
        recorder = None
        if is_recorded:  # which is optional
            from embodied_env.extensions.vector.batched_record import BatchedRecorder

            recorder = BatchedRecorder(cast("list[RecordTransitions]", self.envs))
        self._batched = BatchedSteps(envs, threads, recorder)

    # ---------------------------------------------------------------------------------------------- reset

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Start an episode in every slot, or in those of ``options["reset_mask"]``.

        Args:
            seed: an int: slot i gets ``seed + i``; a sequence: an int or None for each slot; None: no slot is seeded.
            options: reset options, the same in every slot, and `reset_mask`: a bool array of shape (num_envs,) that
                selects at least one slot; the others are left unchanged.

        Returns:
            The observations of all slots, and the stacked infos of those that were reset.

        Raises as `EmbodiedEnv.reset` does, with the other slots reset if a world does not start, and:
            TypeError, ValueError: for invalid seeds or an invalid mask.
            ResetNeededError: when the mask excludes a slot that was never reset.
        """
        check_open(self.closed, "reset")
        seeds = checked_seeds(seed, self.num_envs)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        if not (self._was_reset | mask).all():
            never = np.flatnonzero(~(self._was_reset | mask)).tolist()
            raise ResetNeededError(f"reset_mask excludes slots that were never reset: {never}")
        slots = np.flatnonzero(mask).tolist()
        self._steppers[slots[0]].check_reset(options)  # a rejected reset changes nothing
        infos = self._reset_slots(slots, seeds, options)
        self.mark("returned")  # each slot has waited for the others until now
        return self._batch(), self._stack(infos, {})

    def _reset_slots(
        self, slots: Sequence[int], seeds: Sequence[int | None] | None = None, options: Info | None = None
    ) -> dict[int, Info]:
        """Reset these slots, store their observations, and return their infos.

        Worlds over a middleware are reset at the same time, since a reset mostly waits for processes and answers. The
        first error of a world that did not start is raised after the other slots are reset.
        """

        def reset(slot: int) -> SlotResult:
            if self._batched is not None:
                self._batched.forget(slot)
            own = None if options is None else dict(options)
            return self.envs[slot].reset(seed=None if seeds is None else seeds[slot], options=own)

        calls: list[Callable[[], SlotResult]] = [partial(reset, slot) for slot in slots]
        if len(slots) > 1 and self._steppers[0].capabilities.transport:
            calls = [future.result for future in self._reset_together(slots, calls)]
        infos: dict[int, Info] = {}
        problems: list[BackendError] = []
        for slot, call in zip(slots, calls, strict=True):
            try:
                observation, infos[slot] = call()
            except BackendError as error:
                error.add_note(f"in slot {slot} of {self.num_envs}")
                problems.append(error)
                self._autoreset_envs[slot] = True
            else:
                self._autoreset_envs[slot] = self._terminations[slot] = self._truncations[slot] = False
                self._was_reset[slot] = True
                self._store(slot, observation)
        if problems:
            raise problems[0]
        return infos

    def _reset_together(self, slots: Sequence[int], calls: list[Callable[[], SlotResult]]) -> list[Future[SlotResult]]:
        """Run the resets of these slots in parallel threads, and wait unless interrupted."""
        with ThreadPoolExecutor(len(slots), "resets") as pool:
            futures = [pool.submit(call) for call in calls]
            try:
                wait(futures)
            except BaseException:
                self._was_reset[slots] = False
                while wait(futures, 0.05).not_done:  # repeated, since a world may not have been opened yet
                    for slot, future in zip(slots, futures, strict=True):
                        if not future.done():
                            self._steppers[slot].backend.halt("reset aborted")
                raise
        return futures

    # ----------------------------------------------------------------------------------------------- step

    def step(
        self,
        actions: Any,  # noqa: ANN401 - of the action space
    ) -> tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Take one step of one control period in every slot, with a batch or a list of actions.

        With NEXT_STEP a slot whose episode has ended is reset instead: its action is ignored and its reward is 0. With
        SAME_STEP it is reset in the step that ends the episode; ``final_obs`` and ``final_info`` are those of the end.
        With DISABLED the caller resets.

        Raises:
            ValueError, SlotEndedError, ResetNeededError: for actions of a wrong structure or number, or a slot that
                must be reset first. Nothing is published.
            BackendNotReadyError: when a world does not restart; the other slots have taken their step.
            ClosedError: after `close`.
        """
        check_open(self.closed, "step")
        commands = self._parse(actions)
        self._check_running()
        mode = self.autoreset_mode
        to_reset = np.flatnonzero(self._autoreset_envs).tolist() if mode is AutoresetMode.NEXT_STEP else []
        self._rewards[to_reset] = 0.0
        stacked = self._step_slots(commands, set(to_reset))
        if mode is AutoresetMode.SAME_STEP:
            to_reset = np.flatnonzero(self._autoreset_envs).tolist()
        flags = self._terminations.copy(), self._truncations.copy()
        if to_reset:
            stacked = self._stack(self._reset_slots(to_reset), stacked)
            if mode is AutoresetMode.NEXT_STEP:
                flags = self._terminations.copy(), self._truncations.copy()
        self.mark("returned")  # each slot has waited for the others until now
        return self._batch(), self._rewards.copy(), *flags, stacked

    def _parse(self, actions: Any) -> Sequence[Any] | ActionRows:  # noqa: ANN401 - of the action space
        if self._batched is not None and (rows := self._batched.parse(actions)) is not None:
            return rows
        # a list may hold `NoAction`
        try:
            commands = list(actions if isinstance(actions, (list, tuple)) else iterate(self.action_space, actions))
        except (IndexError, KeyError, TypeError):
            expected = f"expected a batch of {self.single_action_space}, or a list of {self.num_envs} actions"
            raise UsageError(f"wrong structure of the actions: {type(actions).__name__} ({expected})") from None
        if len(commands) != self.num_envs:
            raise ValueError(f"wrong number of actions: {len(commands)} (expected {self.num_envs}, one per slot)")
        return commands if self._batched is None else self._batched.parse_each(commands)

    def _check_running(self) -> None:
        stuck = ~self._was_reset
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            stuck |= self._autoreset_envs  # its world did not start
        if stuck.any():
            raise ResetNeededError(f"step() outside an episode in {_slots(stuck)}; call reset() first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._autoreset_envs.any():
            ended = _slots(self._autoreset_envs)
            raise SlotEndedError(f"step() after the end of the episode in {ended}; reset them by options['reset_mask']")

    def _step_slots(self, commands: Sequence[Any] | ActionRows, excluded: set[int]) -> Info:
        """Begin the steps of all slots not excluded, then finish them, and return stacked infos.

        Results are stored and stacked as they arrive, while other worlds still move. After an error or an interrupt,
        pending steps are aborted; their slots need a reset.
        """
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        slots = [slot for slot in range(self.num_envs) if slot not in excluded]
        self._steps_taken += len(slots)
        under_way: list[int] = []
        stacked: Info = {}
        try:
            if self._batched is not None and isinstance(commands, ActionRows):
                under_way = list(slots)
                is_ordinary = self._batched.begin(commands, slots)
                under_way = np.flatnonzero(is_ordinary).tolist()
                slots = [slot for slot in slots if not is_ordinary[slot]]
            for slot in slots:
                under_way.append(slot)
                self._bases[slot].begin(commands[slot])
            if self._batched is not None and (ordinary := under_way[: len(under_way) - len(slots)]):
                batch = self._batched.finish()
                self._store_batch(batch)
                final = batch.rows & self._autoreset_envs & same_step
                stacked = {**batch.infos(batch.rows & ~final), **batch.final(final)}
                repeated = [slot for slot in ordinary if not batch.rows[slot]]
                under_way = [*repeated, *slots]
                for slot in repeated:
                    self._bases[slot].begin(commands[slot])
                slots = sorted(under_way)
            for slot in self._by_arrival(slots):
                observation, reward, terminated, truncated, info = self.envs[slot].step(commands[slot])
                self._rewards[slot] = reward
                self._terminations[slot], self._truncations[slot] = terminated, truncated
                self._autoreset_envs[slot] = terminated or truncated
                self._store(slot, observation)
                # annotations need not have the same keys and types in every slot
                info = {key: info[key] for key in info if key != "annotations"}
                if same_step and self._autoreset_envs[slot]:
                    info = {"final_obs": observation, "final_info": info}
                stacked = self._add_info(stacked, info, slot)
                under_way.remove(slot)
        except BaseException:
            for slot in under_way:
                self._was_reset[slot] = False
                if self._batched is not None:
                    self._batched.forget(slot)
                self._bases[slot].abort_step()
            raise
        return stacked

    def _by_arrival(self, slots: Sequence[int]) -> Iterator[int]:
        """Yield a slot whose world has finished before those that are still moving."""
        waiting, polls = deque(slots), 0
        while waiting:
            timeout_s = _POLL_S if polls and polls % len(waiting) == 0 else 0.0  # all are polled, then one is awaited
            is_late = polls >= _MAX_POLLS * len(waiting)  # and so are all others
            if is_late or self._steppers[waiting[0]].has_arrived(timeout_s):
                polls = polls if is_late else 0
                yield waiting.popleft()
            else:
                polls += 1
                waiting.rotate(-1)

    def _store_batch(self, batch: StepResults) -> None:
        rows = batch.rows
        for key, values in batch.observation.items():
            self._observations[key][rows] = values[rows]
        self._rewards[rows] = batch.reward[rows]
        self._terminations[rows], self._truncations[rows] = batch.terminated[rows], batch.truncated[rows]
        self._autoreset_envs[rows] = (batch.terminated | batch.truncated)[rows]

    def _store(self, slot: int, observation: Observations) -> None:
        for key, rows in self._observations.items():
            rows[slot] = observation[key]

    def _stack(self, infos: Mapping[int, Info], stacked: Info) -> Info:
        for slot in sorted(infos):
            stacked = self._add_info(stacked, infos[slot], slot)
        return stacked

    def _batch(self) -> Observations:
        return {key: rows.copy() for key, rows in self._observations.items()} if self.copy else self._observations

    # --------------------------------------------------------------------------------------------- others

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step in every slot.

        An example is ``mark("policy")`` right after inference.
        """
        if self._batched is not None:
            self._batched.mark(name)
            return
        for base in self._bases:
            base.mark(name)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - Gymnasium's signature
        """Close every slot, also after an error in another one, and raise the first error.

        The first one is the last, since it removes a record folder in which no slot was recorded.
        """
        calls: list[Callable[[], None]] = [env.close for env in reversed(self.envs)]
        first = cast("EmbodiedEnv", self.envs[0].unwrapped) if self.envs else None
        if self._batched is not None:
            calls.insert(0, self._batched.close)
        if first is not None and first.capabilities.transport:  # a simulator may answer late or not at all
            problems = call_together(calls)
        else:
            problems = [error for call in calls for error in call_together([call])]
        if problems:
            self.closed = True  # Gymnasium sets it only without an error
            raise problems[0]


def _same(env: Env[Any, Any]) -> Env[Any, Any]:
    return env


def _slots(are: NDArray[np.bool_]) -> str:
    """Return the numbers of these slots for a message, the first eight of many."""
    slots = np.flatnonzero(are).tolist()
    return f"slots {slots}" if len(slots) <= 8 else f"{len(slots)} slots, {slots[:8]} first"


def make_vec(
    contract: str | Path | Contract | None = None, *, num_envs: int, **options: Unpack[VectorOptions]
) -> EmbodiedVectorEnv:
    """Make many environments of one contract that step together.

    Args:
        contract: as for `make`.
        num_envs: number of slots.
        backend: name of a lockstep backend.
        autoreset_mode: how a slot is reset whose episode has ended: NEXT_STEP, SAME_STEP or DISABLED.
        per_slot: options of each slot: a sequence of mappings, or a function of the slot number, e.g.
            ``lambda slot: {"domain_id": slot}``, since slots that attach to worlds need a `namespace` or `domain_id`
            each.
        threads: number of threads in which MuJoCo steps batched worlds, the caller's included; None: one per CPU.
        copy: False: return the arrays of observations that the next step overwrites.
        record: a folder; slot i is recorded into a new run directory in ``slot_<i>``.
        **options: these and the other options of `make`, which apply to every slot.

    Raises as `make` does, with UsageError for a free-running world or slots that would share a world.
    """
    made = EmbodiedVectorEnv(contract, num_envs=num_envs, **options)
    one = made.envs[0].unwrapped.spec
    if one is not None:
        kept = {"backend": DEFAULTS["backend"], **changed_options(options), "contract": one.kwargs["contract"]}
        kept |= {"num_envs": num_envs, "autoreset_mode": made.autoreset_mode.value}
        kept["vectorization_mode"] = "vector_entry_point"
        made.spec = replace(one, vector_entry_point=VECTOR_ENTRY_POINT, max_episode_steps=None, kwargs=kept)
    return made
