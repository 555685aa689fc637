"""Step many environments as one `gymnasium.vector.VectorEnv`: begin all steps, then finish all.

Each slot is an environment of `make`, with its own world, clock, gate and ledger. What comes back is what
`gymnasium.vector.SyncVectorEnv` over the same environments gives, in each of the three autoreset modes
(`docs/vector.md`); what differs is that the worlds move at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from numpy.typing import NDArray

from embodied_env.contract import Contract, load_contract
from embodied_env.core.arguments import checked_count, checked_flag, checked_path
from embodied_env.core.process.signals import call_together
from embodied_env.envs.embodied_env import EmbodiedEnv, contract_from_spec, make
from embodied_env.envs.vector_infos import PerSlot, checked_mode, options_of_slots, stacked
from embodied_env.errors import BackendError, ClosedError, ResetNeededError, SlotEndedError, UsageError

Observations = dict[str, NDArray[Any]]
Info = dict[str, Any]
Given = tuple[Observations, Info]  # to the agent, of one slot


class EmbodiedVectorEnv(VectorEnv[Observations, Any, NDArray[Any]]):
    """N robots, each in a world of its own that waits for it.

    Attributes:
        contract: the contract in force, the same in every slot.
        envs: the environment of each slot, in its wrappers (`max_episode_steps`, `record`).
        autoreset_mode: who resets a slot whose episode has ended, and when; also ``metadata["autoreset_mode"]``.
        copy: observations are handed out as copies; False: as the arrays that the next step writes into.
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
        if contract is not None:  # it is read once
            contract = contract_from_spec(contract) if isinstance(contract, Mapping) else load_contract(contract)
        for slot, options in enumerate(slots):
            folder = None if record is None else checked_path("record", record) / f"slot_{slot}"
            self.envs.append(make(contract, record=folder, **options))
        self._bases = [cast("EmbodiedEnv", env.unwrapped) for env in self.envs]
        if (moves := self._bases[0]).capabilities.free_running:
            raise UsageError(
                f"{moves.backend_name} with pacing={moves.pacing!r} cannot be a vector: it moves by itself while the "
                "others are reset; allowed: worlds in lockstep"
            )
        if self._executor is not None and not all(base.use_executor(self._executor) for base in self._bases):
            raise UsageError(
                f"threads is not available with {moves.backend_name} here: only worlds of mujoco without cameras are "
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
            options: values for the contract's reset options, the same in every slot, and `reset_mask`: a bool array
                of shape (num_envs,), at least one of them True; the other slots stay as they are.

        Returns:
            The observations of all slots, and the infos of those that were reset, stacked.

        Raises:
            TypeError: for a mask that is no array, or not of bools.
            ValueError: for seeds or a mask of another length, or a mask of none.
            UsageError: for an unknown option or a value outside its bounds; then no slot is reset.
            ResetNeededError: when a slot that was never reset is left out.
            BackendNotReadyError: when a world does not come up; the other slots were reset.
            ClosedError: after `close`.
        """
        self._check_open("reset")
        seeds = _seeds(seed, self.num_envs)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        if not (self._was_reset | mask).all():
            never = np.flatnonzero(~(self._was_reset | mask)).tolist()
            raise ResetNeededError(f"reset_mask leaves out slots that were never reset: {never}")
        begun = self._begin_episodes(np.flatnonzero(mask).tolist(), seeds, options)
        self._return_to_agent()
        return self._shown(), stacked([begun.get(slot) for slot in range(self.num_envs)])

    def _begin_episodes(
        self, slots: Sequence[int], seeds: Sequence[int | None] | None = None, options: Info | None = None
    ) -> dict[int, Info]:
        """Reset these slots, show what they begin with, and return their infos.

        Raises:
            BackendError: the first of those whose world did not come up; the others were reset.
        """

        def begin(slot: int) -> Given:
            given = None if options is None else dict(options)
            return self.envs[slot].reset(seed=None if seeds is None else seeds[slot], options=given)

        infos: dict[int, Info] = {}
        problems: list[BackendError] = []
        for slot, outcome in self._each(begin, slots):
            try:
                observation, infos[slot] = outcome()
            except BackendError as error:
                error.add_note(f"in slot {slot} of {self.num_envs}")
                problems.append(error)
                self._ended[slot] = True
            else:
                self._ended[slot] = self._terminations[slot] = self._truncations[slot] = False
                self._was_reset[slot] = True
                self._show(slot, observation)
        if problems:
            raise problems[0]
        return infos

    def _each(self, call: Callable[[int], Given], slots: Sequence[int]) -> Iterator[tuple[int, Callable[[], Given]]]:
        """Yield of each slot what returns its outcome.

        Worlds over a middleware are called at the same time, since most of it is waiting: for a process to start, or
        for an answer. All are done when the first error rises.
        """
        if len(slots) < 2 or not self._bases[0].capabilities.transport:
            for slot in slots:
                yield slot, lambda slot=slot: call(slot)  # type: ignore[misc] # a default is the usual way
            return
        with ThreadPoolExecutor(len(slots), "resets") as pool:
            waiting: list[Future[Given]] = [pool.submit(call, slot) for slot in slots]
        for slot, future in zip(slots, waiting, strict=True):
            yield slot, future.result

    # ----------------------------------------------------------------------------------------------- step

    def step(
        self,
        actions: Any,  # noqa: ANN401 - of the action space
    ) -> tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Take one step of one control period in every slot.

        With NEXT_STEP a slot whose episode has ended is reset instead: its action counts for nothing, its reward is 0.
        With SAME_STEP it is reset in the step that ends the episode, and ``final_obs`` and ``final_info`` are of
        the end. With DISABLED nothing is reset here.

        Raises:
            ValueError: for another number of actions; nothing was published.
            SlotEndedError: with DISABLED, when a slot has to be reset first; nothing was published.
            ResetNeededError: before the first `reset`; nothing was published.
            BackendNotReadyError: when a world does not come up again; the other slots have taken their step.
            ClosedError: after `close`.
        """
        self._check_open("step")
        commands = self._commands(actions)
        stuck = ~self._was_reset
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            stuck |= self._ended  # its world did not come up
        if stuck.any():
            slots = np.flatnonzero(stuck).tolist()
            raise ResetNeededError(
                f"step() outside an episode in the slots {slots}: call reset() first; nothing was published"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise SlotEndedError(f"self._autoreset_envs={self._ended!r}")
        resting = np.flatnonzero(self._ended).tolist() if self.autoreset_mode is AutoresetMode.NEXT_STEP else []
        infos: list[Info | None] = [None] * self.num_envs
        for slot, (observation, info) in self._step_slots(commands, set(resting)).items():
            self._show(slot, observation)
            infos[slot] = info
            if self.autoreset_mode is AutoresetMode.SAME_STEP and self._ended[slot]:
                resting.append(slot)
                infos[slot] = {"final_obs": observation, "final_info": info}
        self._rewards[resting if self.autoreset_mode is AutoresetMode.NEXT_STEP else []] = 0.0
        flags = self._terminations.copy(), self._truncations.copy()
        if resting:
            for slot, info in self._begin_episodes(resting).items():
                infos[slot] = {**(infos[slot] or {}), **info}
            if self.autoreset_mode is AutoresetMode.NEXT_STEP:
                flags = self._terminations.copy(), self._truncations.copy()
        self._return_to_agent()
        return self._shown(), self._rewards.copy(), *flags, stacked(infos)

    def _step_slots(self, commands: Sequence[Any], resting: set[int]) -> dict[int, Given]:
        """Begin all steps but those of resting slots, then finish all."""
        moving = [slot for slot in range(self.num_envs) if slot not in resting]
        under_way: list[int] = []
        taken: dict[int, Given] = {}
        with self._none_left(under_way):
            for slot in moving:
                under_way.append(slot)
                self._bases[slot].begin(commands[slot])
            for slot in moving:
                observation, reward, terminated, truncated, info = self.envs[slot].step(commands[slot])
                self._rewards[slot] = reward
                self._terminations[slot], self._truncations[slot] = terminated, truncated
                self._ended[slot] = terminated or truncated
                taken[slot] = observation, info
                under_way.remove(slot)
        return taken

    @contextmanager
    def _none_left(self, under_way: list[int]) -> Iterator[None]:
        """After an error or an interrupt give up the steps that are under way: these slots need a reset."""
        try:
            yield
        except BaseException:
            for slot in under_way:
                self._was_reset[slot] = False
                self._bases[slot].abort_step()
            raise

    def _commands(self, actions: Any) -> list[Any]:  # noqa: ANN401 - of the action space
        commands = list(iterate(self.action_space, actions))
        if len(commands) != self.num_envs:
            raise ValueError(f"step() got {len(commands)} actions; allowed: {self.num_envs}, one for each slot")
        return commands

    def _show(self, slot: int, observation: Observations) -> None:
        for key, rows in self._observations.items():
            rows[slot] = observation[key]

    def _shown(self) -> Observations:
        return {key: rows.copy() for key, rows in self._observations.items()} if self.copy else self._observations

    def _return_to_agent(self) -> None:
        """The agent's time begins now: until here a slot has waited for the others."""
        self.mark("returned")

    # --------------------------------------------------------------------------------------------- others

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step, in every slot: ``mark("policy")`` right after inference."""
        for base in self._bases:
            base.mark(name)

    def render(self) -> tuple[Any, ...]:
        """Return a picture of each slot, as `EmbodiedEnv.render` makes it."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any method's
        """Call the method `name` of each slot, or read the attribute; return what each gives."""
        found = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(each(*args, **kwargs) if callable(each) else each for each in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return the attribute `name` of each slot."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 - any attribute's
        """Set the attribute `name` of each slot: a list or tuple has a value for each, anything else is for all.

        Raises:
            ValueError: for a list of another length.
        """
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"set_attr({name!r}) got {len(each)} values; allowed: {self.num_envs}, one for each slot")
        for env, value in zip(self.envs, each, strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - Gymnasium hands on any
        """Close every slot, whatever the others say; the first error rises."""
        calls = [env.close for env in self.envs]
        first = cast("EmbodiedEnv", self.envs[0].unwrapped) if self.envs else None
        if first is not None and first.capabilities.transport:  # a simulator that does not answer is waited for
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
    """Make many environments of one contract, which step together.

    Args:
        contract: as `make` takes it.
        num_envs: how many.
        backend: which world; it has to wait for the agent (lockstep).
        autoreset_mode: who resets a slot whose episode has ended: NEXT_STEP, SAME_STEP or DISABLED.
        record: a folder; the run of slot i is recorded into a new run directory in ``slot_<i>`` of it.
        per_slot: options of each slot beside the common ones: a mapping for each, or what gives it for a number, as
            ``lambda slot: {"domain_id": slot}``. Slots that attach to worlds need a `namespace` or `domain_id` each.
        threads: so many threads compute the worlds of `mujoco` while the caller's thread judges (`docs/vector.md`
            says when that is faster). Worlds with cameras are computed in the caller's.
        copy: hand out copies of the observations; False: the arrays that the next step writes into.
        **options: what `make` takes, the same for every slot: `max_episode_steps`, `render_mode`, `clock="virtual"`
            (a clock for each), `evaluator_info`, `record_messages`, the options of the backend, ...

    Raises:
        ContractError: when the contract is wrong.
        UsageError: for an unknown backend or option, a world that moves by itself, or slots that would share a world.
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


def _seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + slot for slot in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} seeds; allowed: {num_envs}, one for each slot, or an int, or None")
    return [None if each is None else int(each) for each in seed]


def _checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:  # noqa: ANN401 - it is checked
    """Return `mask`; raises as Gymnasium does."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] is {type(mask).__name__}; allowed: a NumPy array")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] has the shape {mask.shape}; allowed: ({num_envs},)")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] is of {mask.dtype}; allowed: bool")
    if not mask.any():
        raise ValueError(f"options['reset_mask']={mask} resets nothing; allowed: at least one True")
    return mask
