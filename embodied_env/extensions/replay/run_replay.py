"""Replay a run through the environment with its own actions, or through another policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, load_contract
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.policy import NoAction, Policy, PolicyFunction, as_policy, policy_errors, policy_seed
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendError, ResetNeededError, TaskError, UsageError
from embodied_env.extensions.replay.row_decoder import RowDecoder
from embodied_env.extensions.replay.row_differences import row_differences
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.record.arrays import Reference, portable, refer_to
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.row_types import RESET, RecordedRow, ResetRow, Row, TransitionRow
from embodied_env.record.rows import (
    FIELDS,
    FIELDS_OF_RESET,
    given_action,
    is_no_action,
    is_staged,
    reset_row,
    to_json_row,
    transition_row,
)
from embodied_env.record.run import Run, read_json, read_run
from embodied_env.safety.action_parsing import MalformedActionError, parse_action
from embodied_env.timing.clock import ManualClock, SteadyClock

_MOST_FIELDS = 20  # fields of the row that differs
_LAYERS = 2  # layers of a run without wrappers: the recorder and the environment
_VIRTUAL_CLOCKS = ("virtual", "VirtualClock", "ManualClock")


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first row whose replay differs."""

    row: int  # its number in the run
    episode: int  # from 1
    step: int  # from 1, or 0 for the reset
    field: str  # first field that differs in the order of a step, or the refused ``reset`` or ``step``
    recorded: Any  # its value, in JSON types
    replayed: Any  # the same
    others: tuple[str, ...] = ()  # the first 20 further fields that differ, without positions in lists


@dataclass(kw_only=True)
class Replay:
    """Result of a replay."""

    path: Path  # the run directory
    transitions: int = 0  # number of equal transitions
    resets: int = 0  # number of equal resets
    difference: FirstDifference | None = None  # the first row that differs, which ended the replay
    reconstructed: int = 0  # actions that JSON cannot hold, reconstructed from the report of the gate
    left_out: int = 0  # rows that an outer wrapper added, without a step of the environment
    unverified: int = 0  # rows after a missing one, until the next reset: the state of their episode is unknown
    problem: str  # why the run is not clean, or ""
    wrapped: bool  # the run had wrappers, so that actions were replayed as they reached the inner environment
    contract_changed: bool  # the replay used another contract than the run
    task_verified: bool  # the task judged again, which one that is not trusted does not
    task_changed: bool  # the task that judged is not the one in the manifest

    @property
    def equal(self) -> bool:
        """Whether all transitions, at least one, are equal."""
        return self.difference is None and self.transitions > 0

    @property
    def sound(self) -> bool:
        """Whether all rows were compared and equal, the task verified, and the run clean."""
        return self.equal and self.task_verified and not self.unverified and not self.problem


def replay_run(
    path: str | Path,
    *,
    contract: Contract | None = None,
    task: str | Path | None = None,
    trust_task: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Replay:
    """Replay the recorded actions of a run directory, up to the first difference.

    The actions are those that reached its environment. Compared bit for bit: the environment's own account (``inner``)
    and its own keys of ``info``, latencies included; arrays by their hash. Not compared: `IDENTITY` and the duration of
    resets. Nothing that the run names is imported or opened: without a shipped or trusted task, reward and verdict are
    taken from the record.

    Args:
        path: the run directory.
        contract: to replay under, with its task; by default that of the run.
        task: file to load the task from, as ``FILE.py`` or ``FILE.py:Class``.
        trust_task: load the task that the contract of the run names.
        progress: receives how far the replay has come.

    Raises:
        RecordError: when it is not a run directory, or too old to be replayed.
        ContractError: when its contract cannot be read, or its task cannot be loaded.
    """
    run = read_run(path)
    progress.start("replay", _row_count(run))
    clock = ManualClock() if run.manifest.get("clock") in _VIRTUAL_CLOCKS else SteadyClock()
    options = {"backend": "replay", "run": run, "clock": clock, "task": task, "trust_task": trust_task}
    return Replayer(run, contract or contract_of_manifest(run.manifest), options).replay_all(progress)


class Replayer:
    """Steps an environment through the rows of a run, and counts differences in `result`."""

    def __init__(self, run: Run, contract: Contract, options: dict[str, Any]) -> None:
        first = next(run.rows(), None)
        recorded = contract_of_manifest(run.manifest)
        has_truth = first is not None and "evaluator" in first["info"]
        plain = replace(contract, blocks={})  # the rows have the output of the action stages
        self._run, self._env = run, EmbodiedEnv(plain, host_timing=True, evaluator_info=has_truth, **options)
        is_verified = self._env.task_description["source_sha256"] is not None
        self.result = Replay(
            path=run.path,
            problem=run.problem,
            wrapped=_is_wrapped(run),
            contract_changed=contract.fingerprint != recorded.fingerprint,
            task_verified=is_verified,
            task_changed=is_verified and self._env.task_description != run.manifest.get("task"),
        )
        self._decoder = RowDecoder(recorded, run.array)
        self._evaluator = [name for name, spec in contract.sensors.items() if spec.visibility == "evaluator"]
        self._episode = self._step = self._next_row = 0
        self._is_estop = self._has_gap = self._is_incomplete = False

    def replay_all(self, progress: Progress) -> Replay:
        """Replay the rows up to the first difference, close the environment, and return the result."""
        try:
            for row in self._run.rows():
                progress.advance()
                self.replay(row)
                if self.result.difference is not None:
                    break
        finally:
            self._env.close()
        return self.result

    def replay(self, row: RecordedRow) -> None:
        """Replay the next row of the run."""
        is_reset = row["schema"] == RESET
        if row["row"] != self._next_row:
            self._has_gap = self._is_incomplete = True
        self._next_row = row["row"] + 1
        if row["inner"] is None:
            self.result.left_out += 1
            return
        self._is_incomplete &= not is_reset
        if self._is_incomplete:
            self.result.unverified += 1
        else:
            self.result.difference = self._compare(row)
            if self.result.difference is None:
                self.result.resets += is_reset
                self.result.transitions += not is_reset

    def _compare(self, row: TransitionRow | ResetRow) -> FirstDifference | None:
        is_reset = row["schema"] == RESET
        self._episode, self._step = (self._episode + 1, 0) if is_reset else (self._episode, self._step + 1)
        if is_reset and self._is_estop:
            self._env.clear_estop()  # the operator did so at this point, or the step after it latches it again
        latched = None if row["schema"] == RESET else row["inner"]["external_inputs"]["latched_after"]
        self._is_estop = latched is not None and latched["severity"] == Severity.ESTOP.name
        try:
            replayed = self._replay_reset(row) if row["schema"] == RESET else self._replay_step(row)
            found = [each for each in row_differences(row, replayed) if self._is_compared(each[0])]
        except (BackendError, TaskError, UsageError, ResetNeededError) as error:
            found = [("reset" if is_reset else "step", "done", f"{type(error).__name__}: {error}")]
        if not found:
            return None
        field, of_run, of_replay = found[0]
        others = dict.fromkeys(path.partition("[")[0] for path, _, _ in found[1:])
        return FirstDifference(
            row=row["row"],
            episode=self._episode,
            step=self._step,
            field=field,
            recorded=of_run,
            replayed=of_replay,
            others=tuple(others)[:_MOST_FIELDS],
        )

    def _is_compared(self, path: str) -> bool:
        """Return whether a replay must have the same value, unlike that of a wrapper at a reset."""
        return not (self.result.wrapped and path.startswith("observation"))

    def _reset(self, row: ResetRow) -> tuple[Any, Any]:
        index = row["info"]["episode_index"]
        if self._has_gap:  # a reset may be missing too
            self._env.seek_episode(None, index)
        return self._env.reset(seed=0 if index == 0 else None)  # counts as recorded, whatever seed wrappers passed on

    def _replay_reset(self, row: ResetRow) -> Row:
        outer = dict(zip(FIELDS_OF_RESET, (None, None, *self._reset(row)), strict=True))
        return reset_row(self._env.last_reset, row=row["row"], outer=outer, evaluator=self._evaluator, store=_refer)

    def _replay_step(self, row: TransitionRow) -> Row:
        action, is_reconstructed = self._decoder.action(row)
        self.result.reconstructed += is_reconstructed
        result: Any
        try:
            result, made = self._env.step(action), self._env.last_transition
        except TaskError:  # the task may have failed in the record too
            if (made := self._env.last_transition) is None:
                raise
            result = made.result
        observation, *others = result
        outer = dict(zip(FIELDS, (observation, None, *others), strict=True))
        raw = transition_row(made, row=row["row"], outer=outer, evaluator=self._evaluator)
        return to_json_row(raw, _refer)


def _is_wrapped(run: Run) -> bool:
    return len(run.manifest["wrappers"]) > _LAYERS


def _refer(array: NDArray[Any]) -> Reference:
    return refer_to(portable(array))


def _row_count(run: Run) -> int | None:
    """Return the number of rows by the summary of the run, if it has one."""
    try:
        summary = read_json(run.path / "summary.json")
        return int(summary["steps"]) + int(summary["episodes"])
    except (ValueError, KeyError, TypeError):
        return None


# ------------------------------------------------------------------------------------------------------------ policies


@dataclass(frozen=True, kw_only=True)
class PolicyDivergence:
    """Difference between the actions of a policy and those of one recorded episode."""

    episode: int  # from 1
    steps: int  # number of compared actions
    first: int | None  # first step at which they differ, from 1, or None
    diverged: int  # number of steps at which they differ
    largest: FloatArray  # greatest difference of each component, in contract order, NaN where none is known
    mean: FloatArray  # mean difference of each component
    unreadable: int  # steps at which one of the two is not an action, which count as different


@dataclass(frozen=True, kw_only=True)
class PolicyReplay:
    """Actions of a policy for the observations of a run."""

    path: Path  # the run directory
    joints: tuple[str, ...]  # components of an action
    tolerance: float  # greatest difference that counts as equal
    episodes: tuple[PolicyDivergence, ...]  # result of each
    problem: str  # why the run is not clean, or ""
    wrapped: bool  # the run had wrappers, so that observations and actions are those of the inner environment

    @property
    def first(self) -> tuple[int, int] | None:
        """Episode and step of the first difference, or None."""
        return next(((found.episode, found.first) for found in self.episodes if found.first is not None), None)


def replay_policy(
    path: str | Path,
    policy: Policy | PolicyFunction,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
    chunks: str = "wait",
    progress: Progress = NO_PROGRESS,
) -> PolicyReplay:
    """Call `policy` with the recorded observations, and compare its actions.

    The world does not follow the policy: the observations are those of the record. The policy is reset before each
    episode as in an evaluation with `seed` and `chunks`, in lockstep; steps after a missing row of their episode are
    skipped. Components that differ by at most `tolerance`, in action units, are equal.

    Raises:
        UsageError: for a negative tolerance, or NaN.
        PolicyError: when the policy raises.
        RecordError: when it is not a run directory, or too old to be replayed.
    """
    if not tolerance >= 0.0:
        raise UsageError(f"invalid tolerance: {tolerance} (expected 0 or more)")
    run = read_run(path)
    progress.start("replay", _row_count(run))
    contract = contract_of_manifest(run.manifest)
    layout, decoder = ActionLayout(contract), RowDecoder(contract, run.array)
    episodes: list[list[FloatArray | None]] = []
    observation: dict[str, NDArray[Any]] = {}
    runner = ChunkRunner(as_policy(policy), chunks)
    next_row, is_known = 0, False  # after a missing row, the state of the policy is unknown until the next reset
    for row in run.rows():
        progress.advance()
        is_known &= row["row"] == next_row
        next_row = row["row"] + 1
        if row["inner"] is None:
            continue
        if row["schema"] == RESET:
            is_known = True
            episodes.append([])
            index = row["info"]["episode_index"]
            with policy_errors("policy", f"the reset of episode {len(episodes)}"):
                runner.reset(seed=policy_seed(seed, index), episode_index=index)
        elif is_known:
            with policy_errors("policy", f"episode {len(episodes)}, step {len(episodes[-1]) + 1}"):
                action = runner(observation)
            episodes[-1].append(_policy_difference(action, row, decoder, layout))
        observation = decoder.observation(row)
    return PolicyReplay(
        path=run.path,
        joints=layout.joints,
        tolerance=tolerance,
        episodes=tuple(_divergence(number, found, layout.size, tolerance) for number, found in enumerate(episodes, 1)),
        problem=run.problem,
        wrapped=_is_wrapped(run),
    )


def _policy_difference(
    action: Any,  # noqa: ANN401 - policies return anything
    row: TransitionRow,
    decoder: RowDecoder,
    layout: ActionLayout,
) -> FloatArray | None:
    """Return the difference from the recorded action of the policy, before any stage."""
    if not is_staged(row["inner"]):
        return _difference(action, decoder.action(row)[0], layout)
    given = given_action(row["inner"])
    if to_json_types(action) == given:  # a stage may have a space of its own, whose actions the layout does not fit
        return np.zeros(layout.size)
    return _difference(action, NoAction(given["no_action"]) if is_no_action(given) else given, layout)


def _difference(a: Any, b: Any, layout: ActionLayout) -> FloatArray | None:  # noqa: ANN401 - policies return anything
    """Return the difference of two actions, (n_joints,), or None unless both are readable."""
    if isinstance(a, NoAction) and isinstance(b, NoAction):
        return np.zeros(layout.size)
    try:
        return np.abs(np.subtract(parse_action(a, layout), parse_action(b, layout)))
    except MalformedActionError:
        return None


def _divergence(episode: int, found: list[FloatArray | None], size: int, tolerance: float) -> PolicyDivergence:
    known = np.array([each for each in found if each is not None]).reshape(-1, size)
    diverged = [each is None or bool((each > tolerance).any()) for each in found]
    unknown = np.full(size, np.nan)
    return PolicyDivergence(
        episode=episode,
        steps=len(found),
        first=diverged.index(True) + 1 if any(diverged) else None,
        diverged=sum(diverged),
        largest=known.max(axis=0) if len(known) else unknown,
        mean=known.sum(axis=0) / len(known) if len(known) else unknown,
        unreadable=len(found) - len(known),
    )


SIMULATORS = ("fake", "mujoco")  # in-process backends with the same results for the same seeds and actions

_NOT_SIMULATED = (
    *("inner.stamps_ns", "info.latency", "info.latency_ms"),  # durations of the host
    *("inner.external_inputs.annotations", "inner.external_inputs.chunk", "info.annotations"),  # accounts of the policy
    *("inner.instruction", "inner.external_inputs.instruction", "info.instruction"),  # its prompt
)
_ARRIVALS = ("arrival_ns", "arrival_system_ns", "arrival_age_s")


def simulate_run(path: str | Path, *, contract: Contract | None = None, progress: Progress = NO_PROGRESS) -> Replay:
    """Simulate a run in lockstep again, and compare up to the first difference.

    The world starts from the recorded seed of each reset and receives the recorded actions. All values are compared bit
    for bit, except for durations and arrivals on the host, and accounts of the policy.

    Args:
        path: the run directory.
        contract: that of the run, which is trusted with its model and task; by default the shipped one of that name.
        progress: receives how far the simulation has come.

    Raises:
        RecordError: when it is not a run directory.
        UsageError: when its backend cannot repeat it, or the contract is another one.
    """
    run = read_run(path)
    backend, delays = run.manifest["backend"], run.manifest["delays"]
    if backend not in SIMULATORS or run.manifest["pacing"] != "lockstep" or delays is not None:
        found = f"backend {backend!r}, pacing {run.manifest['pacing']!r}{'' if delays is None else ', injected delays'}"
        expected = f"one of {', '.join(SIMULATORS)} in lockstep, without injected delays"
        raise UsageError(f"{run.path} cannot be simulated again: {found} (expected {expected})")
    return _Simulator(run, _contract_of(run, contract), {"backend": backend}).replay_all(progress)


class _Simulator(Replayer):
    """Steps the backend of a run with its seeds and actions."""

    def _is_compared(self, path: str) -> bool:
        is_simulated = not path.startswith(_NOT_SIMULATED) and path.rpartition(".")[2] not in _ARRIVALS
        return is_simulated and super()._is_compared(path)

    def _reset(self, row: ResetRow) -> tuple[Any, Any]:
        inner = row["inner"]
        if (seed := inner["seed_applied"]) is None:
            raise UsageError(f"row {row['row']} has no seed of the world (expected one in each reset)")
        self._env.seek_episode(None, row["info"]["episode_index"])
        return self._env.stepper.reset(world_seed=seed, options=inner["options"], seeded=False)


def _contract_of(run: Run, given: Contract | None) -> Contract:
    """Return the given or shipped contract of the run, without opening a file that it names."""
    recorded = contract_of_manifest(run.manifest)
    if given is None and recorded.name in shipped_files():
        given = load_contract(recorded.name)
    if given is not None and given.fingerprint == recorded.fingerprint:
        return given
    found = "it is not a shipped one" if given is None else f"fingerprint {given.fingerprint}"
    expected = f"its contract {recorded.name!r}, fingerprint {recorded.fingerprint}, as contract= or --contract FILE"
    raise UsageError(f"{run.path} cannot be simulated again: {found} (expected {expected})")
