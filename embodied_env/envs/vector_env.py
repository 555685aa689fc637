"""Step many environments as one `gymnasium.vector.VectorEnv`: begin all steps, then finish all.

Each slot is an environment of `make`, with its own world, clock, gate and ledger. Results equal those of
`gymnasium.vector.SyncVectorEnv` over the same environments in each of the three autoreset modes
(`docs/reference/vector.md`); the only difference is that the worlds move at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.arguments import checked_count, checked_flag, checked_path
from embodied_env.core.process.signals import call_together
from embodied_env.envs.embodied_env import EmbodiedEnv, make, resolve_contract
from embodied_env.envs.transition_builder import Info
from embodied_env.envs.vector_slots import PerSlot, checked_mask, checked_mode, checked_seeds, options_of_slots
from embodied_env.errors import BackendError, ClosedError, ResetNeededError, SlotEndedError, UsageError

Observations = dict[str, NDArray[Any]]
SlotResult = tuple[Observations, Info]


class EmbodiedVectorEnv(VectorEnv[Observations, Any, NDArray[Any]]):
    """N robots, each in a lockstep world of its own.

    Attributes:
        contract: the contract in force, the same in every slot.
        envs: the environment of each slot, in its wrappers (`max_episode_steps`, `record`).
        autoreset_mode: how a slot is reset whose episode has ended; also ``metadata["autoreset_mode"]``.
        copy: observations are returned as copies; False: as the arrays that the next step writes to.
    """

    def __init__(
        self,
        contract: str | Path | Contract | Mapping[str, str] | None = None,
        *,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        record: str | Path | None = None,
        per_slot: PerSlot | None = None,
        threads: int = 0,
        copy: bool = True,
        **options: Any,  # noqa: ANN401 - `make` checks them
    ) -> None:
        """See `make_vec`; nothing is started before the first `reset`."""
        super().__init__()
        self.autoreset_mode = checked_mode(autoreset_mode)
        self.copy = checked_flag("copy", copy)
        self.num_envs = checked_count("num_envs", num_envs, at_least=1)
        threads = checked_count("threads", threads, at_least=0)
        self._executor = ThreadPoolExecutor(threads, "worlds") if threads else None
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            self._make_slots(contract, record, options_of_slots(self.num_envs, options, per_slot))
        except BaseException:
            self.close()
            raise
        first = self.envs[0]
        self.contract = self._bases[0].contract
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        empty = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        self._observations = cast("Observations", empty)
        self._rewards = np.zeros(self.num_envs, dtype=np.float64)
        self._terminations, self._truncations, self._ended, self._was_reset = (
            np.zeros(self.num_envs, dtype=np.bool_) for _ in range(4)
        )

    def _make_slots(
        self,
        contract: str | Path | Contract | Mapping[str, Any] | None,
        record: str | Path | None,
        slots: Sequence[Mapping[str, Any]],
    ) -> None:
        if contract is not None:  # read it once
            contract = resolve_contract(contract)
        for slot, options in enumerate(slots):
            folder = None if record is None else checked_path("record", record) / f"slot_{slot}"
            self.envs.append(make(contract, record=folder, **options))
        self._bases = [cast("EmbodiedEnv", env.unwrapped) for env in self.envs]
        first = self._bases[0]
        if first.capabilities.free_running:
            raise UsageError(
                f"{first.backend_name} with pacing={first.pacing!r} cannot be a vector: it moves by itself while the "
                "others are reset; allowed: worlds in lockstep"
            )
        if self._executor is not None and not all(base.use_executor(self._executor) for base in self._bases):
            raise UsageError(
                f"threads is not available with {first.backend_name} here: only worlds of mujoco without cameras are "
                "computed in threads; allowed: 0"
            )

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override] # as Gymnasium's own SyncVectorEnv
        """The seed of each slot."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc] # as SyncVectorEnv
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each slot, from which the seeds of its worlds are drawn."""
        return self.get_attr("np_random")

    # ---------------------------------------------------------------------------------------------- reset

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, Info]:
        """Start an episode in every slot, or in those of ``options["reset_mask"]``.

        Args:
            seed: an int: slot i gets ``seed + i``; a sequence: an int or None for each slot; None: no slot is seeded.
            options: reset options, the same in every slot, and `reset_mask`: a bool array of shape (num_envs,) with at
                least one True; the other slots are left unchanged.

        Returns:
            The observations of all slots, and the stacked infos of those that were reset.

        Raises:
            TypeError: for a mask that is not an array of bools.
            ValueError: for seeds or a mask of another length, or a mask without True.
            gymnasium.error.Error: for a seed that is not an integer >= 0.
            UsageError: for an unknown option or a value outside its bounds; then no slot is reset.
            ResetNeededError: when the mask leaves out a slot that was never reset.
            BackendNotReadyError: when a world does not start; the other slots were reset.
            ClosedError: after `close`.
        """
        self._check_open("reset")
        seeds = checked_seeds(seed, self.num_envs)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        if not (self._was_reset | mask).all():
            never = np.flatnonzero(~(self._was_reset | mask)).tolist()
            raise ResetNeededError(f"reset_mask leaves out slots that were never reset: {never}")
        infos = self._reset_slots(np.flatnonzero(mask).tolist(), seeds, options)
        self.mark("returned")  # until here each slot has waited for the others
        return self._batch(), self._stack(infos)

    def _reset_slots(
        self, slots: Sequence[int], seeds: Sequence[int | None] | None = None, options: Info | None = None
    ) -> dict[int, Info]:
        """Reset these slots, store their observations, and return their infos.

        Worlds over a middleware are reset at the same time, since most of it is waiting for processes and answers.

        Raises:
            BackendError: the first error of a world that did not start; the other slots were reset.
        """

        def reset(slot: int) -> SlotResult:
            own = None if options is None else dict(options)
            return self.envs[slot].reset(seed=None if seeds is None else seeds[slot], options=own)

        calls: list[Callable[[], SlotResult]] = [partial(reset, slot) for slot in slots]
        if len(slots) > 1 and self._bases[0].capabilities.transport:
            with ThreadPoolExecutor(len(slots), "resets") as pool:
                calls = [future.result for future in [pool.submit(call) for call in calls]]
        infos: dict[int, Info] = {}
        problems: list[BackendError] = []
        for slot, call in zip(slots, calls, strict=True):
            try:
                observation, infos[slot] = call()
            except BackendError as error:
                error.add_note(f"in slot {slot} of {self.num_envs}")
                problems.append(error)
                self._ended[slot] = True
            else:
                self._ended[slot] = self._terminations[slot] = self._truncations[slot] = False
                self._was_reset[slot] = True
                self._store(slot, observation)
        if problems:
            raise problems[0]
        return infos

    # ----------------------------------------------------------------------------------------------- step

    def step(
        self,
        actions: Any,  # noqa: ANN401 - of the action space
    ) -> tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Take one step of one control period in every slot.

        With NEXT_STEP a slot whose episode has ended is reset instead: its action is ignored and its reward is 0. With
        SAME_STEP it is reset in the step that ends the episode, and ``final_obs`` and ``final_info`` hold the end of
        the episode. With DISABLED the caller resets.

        Raises:
            ValueError: for another number of actions; nothing was published.
            SlotEndedError: with DISABLED, when a slot has to be reset first; nothing was published.
            ResetNeededError: before the first `reset`; nothing was published.
            BackendNotReadyError: when a world does not start again; the other slots have taken their step.
            ClosedError: after `close`.
        """
        self._check_open("step")
        commands = list(iterate(self.action_space, actions))
        if len(commands) != self.num_envs:
            raise ValueError(f"step() got {len(commands)} actions; allowed: {self.num_envs}, one for each slot")
        mode = self.autoreset_mode
        stuck = ~self._was_reset
        if mode is AutoresetMode.SAME_STEP:
            stuck |= self._ended  # its world did not start
        if stuck.any():
            slots = np.flatnonzero(stuck).tolist()
            raise ResetNeededError(
                f"step() outside an episode in the slots {slots}: call reset() first; nothing was published"
            )
        if mode is AutoresetMode.DISABLED and self._ended.any():
            raise SlotEndedError(f"self._autoreset_envs={self._ended!r}")
        to_reset = np.flatnonzero(self._ended).tolist() if mode is AutoresetMode.NEXT_STEP else []
        self._rewards[to_reset] = 0.0
        infos: dict[int, Info] = {}
        for slot, (observation, info) in self._step_slots(commands, set(to_reset)).items():
            self._store(slot, observation)
            infos[slot] = info
            if mode is AutoresetMode.SAME_STEP and self._ended[slot]:
                to_reset.append(slot)
                infos[slot] = {"final_obs": observation, "final_info": info}
        flags = self._terminations.copy(), self._truncations.copy()
        if to_reset:
            for slot, info in self._reset_slots(to_reset).items():
                infos[slot] = {**infos.get(slot, {}), **info}
            if mode is AutoresetMode.NEXT_STEP:
                flags = self._terminations.copy(), self._truncations.copy()
        self.mark("returned")  # until here each slot has waited for the others
        return self._batch(), self._rewards.copy(), *flags, self._stack(infos)

    def _step_slots(self, commands: Sequence[Any], excluded: set[int]) -> dict[int, SlotResult]:
        """Begin the steps of all slots that are not excluded, then finish them.

        After an error or an interrupt, the steps that are under way are aborted; these slots need a reset.
        """
        slots = [slot for slot in range(self.num_envs) if slot not in excluded]
        under_way: list[int] = []
        results: dict[int, SlotResult] = {}
        try:
            for slot in slots:
                under_way.append(slot)
                self._bases[slot].begin(commands[slot])
            for slot in slots:
                observation, reward, terminated, truncated, info = self.envs[slot].step(commands[slot])
                self._rewards[slot] = reward
                self._terminations[slot], self._truncations[slot] = terminated, truncated
                self._ended[slot] = terminated or truncated
                results[slot] = observation, info
                under_way.remove(slot)
        except BaseException:
            for slot in under_way:
                self._was_reset[slot] = False
                self._bases[slot].abort_step()
            raise
        return results

    def _store(self, slot: int, observation: Observations) -> None:
        for key, rows in self._observations.items():
            rows[slot] = observation[key]

    def _batch(self) -> Observations:
        return {key: rows.copy() for key, rows in self._observations.items()} if self.copy else self._observations

    def _stack(self, infos: Mapping[int, Info]) -> Info:
        """Stack the infos of slots, key by key, as every vector environment of Gymnasium does."""
        stacked: Info = {}
        for slot in sorted(infos):
            stacked = self._add_info(stacked, infos[slot], slot)
        return stacked

    # --------------------------------------------------------------------------------------------- others

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step in every slot: ``mark("policy")`` right after inference."""
        for base in self._bases:
            base.mark(name)

    def render(self) -> tuple[Any, ...]:
        """Return an image of each slot; see `EmbodiedEnv.render`."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method's
        """Call the method `name` of each slot, or read the attribute; return one value for each."""
        found = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(each(*args, **kwargs) if callable(each) else each for each in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return the attribute `name` of each slot."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 - any attribute's
        """Set the attribute `name`: a list or tuple has one value for each slot, anything else is for all.

        Raises:
            ValueError: for a list of another length.
        """
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"set_attr({name!r}) got {len(each)} values; allowed: {self.num_envs}, one for each slot")
        for env, value in zip(self.envs, each, strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - Gymnasium hands on any
        """Close every slot, also after an error of another; raise the first error."""
        calls = [env.close for env in self.envs]
        first = cast("EmbodiedEnv", self.envs[0].unwrapped) if self.envs else None
        if first is not None and first.capabilities.transport:  # a simulator that does not answer takes time
            problems = call_together(calls)
        else:
            problems = [error for call in calls for error in call_together([call])]
        if self._executor is not None:
            self._executor.shutdown()
        if problems:
            raise problems[0]

    def _check_open(self, call: str) -> None:
        if self.closed:
            raise ClosedError(f"{call}() after close(): the environment is closed; make a new one")


def make_vec(  # noqa: PLR0913 - the public options
    contract: str | Path | Contract | None = None,
    *,
    num_envs: int,
    backend: str = "mujoco",
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    record: str | Path | None = None,
    per_slot: PerSlot | None = None,
    threads: int = 0,
    copy: bool = True,
    **options: Any,  # noqa: ANN401 - `make` checks them
) -> EmbodiedVectorEnv:
    """Make many environments of one contract that step together.

    Args:
        contract: as for `make`.
        num_envs: number of slots.
        backend: name of a lockstep backend.
        autoreset_mode: how a slot is reset whose episode has ended: NEXT_STEP, SAME_STEP or DISABLED.
        record: a folder; the run of slot i is recorded into a new run directory in its ``slot_<i>``.
        per_slot: additional options of each slot: a sequence of mappings, or a function of the slot number such as
            ``lambda slot: {"domain_id": slot}``. Slots that attach to worlds need a `namespace` or `domain_id` each.
        threads: number of threads that compute the worlds of `mujoco` while the caller's thread judges
            (`docs/reference/vector.md`: when that is faster). Worlds with cameras are computed in the caller's thread.
        copy: return copies of the observations; False: the arrays that the next step writes to.
        **options: options of `make`, the same for every slot: `max_episode_steps`, `render_mode`, `clock="virtual"`
            (a clock for each), `evaluator_info`, `record_messages`, the options of the backend, ...

    Raises:
        ContractError: for an invalid contract.
        UsageError: for an unknown backend or option, a free-running world, or slots that would share a world.
        MissingDependencyError: when an optional package is not installed.
    """
    given: dict[str, Any] = {
        "num_envs": num_envs,
        "backend": backend,
        "per_slot": per_slot,
        "threads": threads,
        "copy": copy,
        "autoreset_mode": autoreset_mode,
        "record": record,
        **options,
    }
    made = EmbodiedVectorEnv(contract, **given)
    one = made.envs[0].spec
    if one is not None:
        kept = {**given, "contract": one.kwargs["contract"], "autoreset_mode": made.autoreset_mode.value}
        made.spec = EnvSpec(
            id=one.id,
            entry_point="embodied_env.envs.embodied_env:EmbodiedEnv",
            vector_entry_point="embodied_env.envs.vector_env:EmbodiedVectorEnv",
            kwargs={**kept, "vectorization_mode": "vector_entry_point"},
            order_enforce=False,
            disable_env_checker=True,
        )
    return made
