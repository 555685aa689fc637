"""Replaying a recorded run: do the same actions still make the same transitions, and would a policy still act so?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.analysis.progress import NoProgress, Progress
from embodied_env.backends.replay import recorded_contract
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import ManualClock, SteadyClock
from embodied_env.core.codes import Severity
from embodied_env.core.policy import Policy
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendError, PolicyError, ResetNeededError, UsageError
from embodied_env.record.arrays import Reference, refer_to, to_bytes
from embodied_env.record.differences import differences
from embodied_env.record.row_decoder import RowDecoder, require_replayable
from embodied_env.record.rows import FIELDS, FIELDS_OF_RESET, RESET, Row, reset_row, transition_row
from embodied_env.record.run import Run, read_json, read_run
from embodied_env.safety.action_parsing import MalformedActionError, parse_action

_LISTED = 20  # fields of the first transition that differs
_LAYERS = 2  # of a run without wrappers: the recorder, and the environment
_VIRTUAL = ("virtual", "VirtualClock", "ManualClock")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first row that did not come out as it was.

    Attributes:
        row: its number in the run.
        episode: from 1.
        step: from 1; 0: the reset.
        field: what differs, in the order in which a step comes about; ``reset``: it was refused, ``step``: so was it.
        recorded: its value, in types of JSON.
        replayed: the same.
        others: further fields of that row that differ, without the places in their lists; the first 20 of them.
    """

    row: int
    episode: int
    step: int
    field: str
    recorded: Any
    replayed: Any
    others: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of a replay.

    Attributes:
        path: the run directory.
        transitions: how many came out as they were.
        resets: the same of resets.
        difference: the first row that did not, at which the replay has ended; None: there is none.
        remade: actions that the log could not say, re-made from what the gate said of them.
        left_out: rows that an outer wrapper had made up, without a step of the environment.
        unverified: rows that were not compared: between a row that is missing in the log and the next reset, the state
            of the episode (of the task, the gate, the observation) is not known.
        problem: why the run is not clean, or "".
        wrapped: there were wrappers: the actions that reached the environment were replayed.
        contract_changed: the replay was not under the contract of the run.
        task_verified: rewards and verdicts were judged again by the task; False: the task was not trusted.
        task_changed: the task that judged is not the one that the manifest describes.
    """

    path: Path
    transitions: int
    resets: int
    difference: Difference | None
    remade: int
    left_out: int
    unverified: int
    problem: str
    wrapped: bool
    contract_changed: bool
    task_verified: bool
    task_changed: bool

    @property
    def equal(self) -> bool:
        """Every transition came out as it was, and there was one."""
        return self.difference is None and self.transitions > 0

    @property
    def sound(self) -> bool:
        """It is equal as a whole, its task was verified, and the run is clean."""
        return self.equal and self.task_verified and not self.unverified and not self.problem


class _Replayer:
    """Steps an environment through a run, and compares."""

    def __init__(self, run: Run, contract: Contract | None, task: str | Path | None, *, trust_task: bool) -> None:
        first = next(run.rows(), None)
        info = first["info"] if isinstance(first, dict) and isinstance(first.get("info"), dict) else {}
        self.recorded = recorded_contract(run)
        self.contract = contract or self.recorded
        self._env = EmbodiedEnv(
            self.contract,
            backend="replay",
            run=run,
            clock=ManualClock() if run.manifest.get("clock") in _VIRTUAL else SteadyClock(),
            evaluator_info="evaluator" in info,
            task=task,
            trust_task=trust_task,
        )
        self.task_verified = self._env.task_description["source_sha256"] is not None
        self.task_changed = self.task_verified and self._env.task_description != run.manifest.get("task")
        self._reader = RowDecoder(self.recorded, run.array)
        self._evaluator = [name for name, spec in self.contract.sensors.items() if spec.visibility == "evaluator"]
        self.episode = self.step = self.remade = 0
        self._is_estop = self._has_gap = self._is_incomplete = False
        self._next_row = 0

    def follows_on(self, row: Row) -> bool:
        """Say whether all rows of its episode before `row` are there; each row of the run is given, in order."""
        number = row.get("row")
        if number != self._next_row:
            self._has_gap = self._is_incomplete = True
        self._next_row = (number if isinstance(number, int) else self._next_row) + 1
        if row.get("schema") == RESET and row.get("inner") is not None:
            self._is_incomplete = False
        return not self._is_incomplete

    def replay(self, row: Row, following: Row | None) -> Difference | None:
        """Replay one row, on which `following` followed; return where it came out differently, or None."""
        is_reset = row["schema"] == RESET
        self.episode, self.step = (self.episode + 1, 0) if is_reset else (self.episode, self.step + 1)
        require_replayable(row)
        if is_reset and self._is_estop and not _is_estop(following, "latched"):
            self._env.clear_estop()  # a person did so then
        self._is_estop = _is_estop(row, "latched_after")
        try:
            made = self._reset(row) if is_reset else self._step(row)
        except (BackendError, UsageError, ResetNeededError) as error:
            return self._differs(row, "reset" if is_reset else "step", "done", f"{type(error).__name__}: {error}")
        found = list(differences(row, made))
        if not found:
            return None
        others = dict.fromkeys(path.partition("[")[0] for path, _, _ in found[1:])
        return self._differs(row, *found[0], others=tuple(others)[:_LISTED])

    def close(self) -> None:
        self._env.close()

    def _reset(self, row: Row) -> Row:
        index = row["info"].get("episode_index") if isinstance(row["info"], dict) else None
        if self._has_gap and isinstance(index, int):  # a reset may be missing, too
            self._env.seek_episode(None, index)
        outer = dict(zip(FIELDS_OF_RESET, (None, None, *self._env.reset(seed=_seed(row))), strict=True))
        return reset_row(self._env.last_reset, row=row["row"], outer=outer, evaluator=self._evaluator, store=_refer)

    def _step(self, row: Row) -> Row:
        action, is_remade = self._reader.action(row)
        self.remade += is_remade
        observation, reward, terminated, truncated, info = self._env.step(action)
        outer = dict(zip(FIELDS, (observation, None, reward, terminated, truncated, info), strict=True))
        made = self._env.last_transition
        return transition_row(made, row=row["row"], outer=outer, evaluator=self._evaluator, store=_refer)

    def _differs(
        self,
        row: Row,
        field: str,
        recorded: object,
        replayed: object,
        *,
        others: tuple[str, ...] = (),
    ) -> Difference:
        return Difference(
            row=row["row"],
            episode=self.episode,
            step=self.step,
            field=field,
            recorded=recorded,
            replayed=replayed,
            others=others,
        )


def replay_run(
    path: str | Path,
    *,
    contract: Contract | None = None,
    task: str | Path | None = None,
    trust_task: bool = False,
    progress: Progress | None = None,
) -> Replay:
    """Replay the run directory at `path` with the actions that reached its environment, up to the first difference.

    What is compared is the environment's own account (``inner``) and the keys of ``info`` that are its own, bit for
    bit, latencies included; arrays beside the rows by their hash. Not compared: `IDENTITY`, and how long a reset took.
    Nothing that the run names is imported or opened: without a shipped or trusted task, reward and verdict are taken
    from the record.

    Args:
        path: the run directory.
        contract: replay under this one, and load its task; None: under the run's own.
        task: load the task from this file, as ``FILE.py`` or ``FILE.py:Class``.
        trust_task: load the task that the contract of the run names.
        progress: receives how far it has come.

    Raises:
        RecordError: when it is not a run directory, or too old to be replayed.
        ContractError: when its contract cannot be read, or its task cannot be loaded.
    """
    run = read_run(path)
    progress = progress or NoProgress()
    progress.start("replay", _recorded_rows(run))
    replayer = _Replayer(run, contract, task, trust_task=trust_task)
    counts = {True: 0, False: 0}
    left_out = unverified = 0
    difference = None
    try:
        for row, following in pairwise(chain(run.rows(), [None])):
            progress.advance()
            follows_on = row is not None and replayer.follows_on(row)
            if row is None or row.get("inner") is None:
                left_out += 1
                continue
            if not follows_on:
                unverified += 1
                continue
            difference = replayer.replay(row, following)
            if difference is not None:
                break
            counts[row["schema"] == RESET] += 1
    finally:
        replayer.close()
    return Replay(
        path=run.path,
        transitions=counts[False],
        resets=counts[True],
        difference=difference,
        remade=replayer.remade,
        left_out=left_out,
        unverified=unverified,
        problem=run.problem,
        wrapped=is_wrapped(run),
        contract_changed=replayer.contract.fingerprint != replayer.recorded.fingerprint,
        task_verified=replayer.task_verified,
        task_changed=replayer.task_changed,
    )


def is_wrapped(run: Run) -> bool:
    """Say whether wrappers stood between the recorder and the environment."""
    wrappers = run.manifest.get("wrappers")
    return isinstance(wrappers, list) and len(wrappers) > _LAYERS


def _is_estop(row: Row | None, when: str) -> bool:
    """Say whether an ESTOP was latched, before or after the step of `row`; a reset has none of its own."""
    circumstances = {} if row is None else (row.get("inner") or {}).get("circumstances", {})
    return bool((circumstances.get(when) or {}).get("severity") == Severity.ESTOP.name)


def _seed(row: Row) -> int | None:
    """Return a seed that makes episodes count as they did, whatever wrappers made of the one that was given."""
    info = row["info"]
    index = info.get("episode_index") if isinstance(info, dict) else None
    return 0 if index == 0 else None


def _refer(array: NDArray[Any]) -> Reference:
    """Return the reference to an array, which is kept nowhere."""
    return refer_to(array, to_bytes(array))


# ------------------------------------------------------------------------------------------------------------ policies


@dataclass(frozen=True, kw_only=True)
class PolicyDivergence:
    """How far a policy's actions are from those of one recorded episode.

    Attributes:
        episode: from 1.
        steps: how many actions were compared.
        first: the first step at which they part, from 1; None: they never do.
        parted: at how many steps they part.
        largest: of each component of the action, in contract order, the largest difference; NaN where none could be
            compared.
        mean: the same, the mean.
        unreadable: steps at which one of the two is no action: these part too.
    """

    episode: int
    steps: int
    first: int | None
    parted: int
    largest: FloatArray
    mean: FloatArray
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class PolicyReplay:
    """What a policy does with the observations of a run.

    Attributes:
        path: the run directory.
        joints: the components of an action.
        tolerance: differences up to it do not count.
        episodes: each in turn.
        problem: why the run is not clean, or "".
        wrapped: there were wrappers: the observations and actions compared are those of the environment itself.
    """

    path: Path
    joints: tuple[str, ...]
    tolerance: float
    episodes: tuple[PolicyDivergence, ...]
    problem: str
    wrapped: bool

    @property
    def first(self) -> tuple[int, int] | None:
        """Episode and step at which the actions first part, or None."""
        return next(((found.episode, found.first) for found in self.episodes if found.first is not None), None)


def replay_policy(
    path: str | Path,
    policy: Policy,
    *,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> PolicyReplay:
    """Show the recorded observations to `policy`, and compare what it would do with what was done.

    The world does not follow the policy: after its actions part, the observations are still those of the record.

    Args:
        path: the run directory.
        policy: called with each observation that an action followed on.
        tolerance: how far apart two components may be, in action units.
        progress: receives how far it has come.

    Raises:
        UsageError: for a tolerance that is none.
        PolicyError: when the policy raises.
        RecordError: when it is not a run directory, or too old to be replayed.
    """
    if not tolerance >= 0.0:
        raise UsageError(f"tolerance={tolerance} is not allowed; allowed: 0 or more")
    run = read_run(path)
    progress = progress or NoProgress()
    progress.start("replay", _recorded_rows(run))
    recorded = recorded_contract(run)
    layout = ActionLayout(recorded)
    reader = RowDecoder(recorded, run.array)
    episodes: list[_DivergenceStats] = []
    observation: dict[str, NDArray[Any]] | None = None
    for row in run.rows():
        progress.advance()
        if row.get("inner") is None:
            continue
        require_replayable(row)
        if row["schema"] == RESET:
            episodes.append(_DivergenceStats(len(episodes) + 1, layout.size, tolerance))
        elif observation is not None and episodes:
            asked = episodes[-1].ask(policy, observation)
            episodes[-1].compare(_read(asked, layout), _read(reader.action(row)[0], layout))
        observation = reader.observation(row)
    return PolicyReplay(
        path=run.path,
        joints=layout.joints,
        tolerance=tolerance,
        episodes=tuple(episode.parting() for episode in episodes),
        problem=run.problem,
        wrapped=is_wrapped(run),
    )


class _DivergenceStats:
    """Sums over one episode."""

    def __init__(self, episode: int, size: int, tolerance: float) -> None:
        self._episode = episode
        self._tolerance = tolerance
        self._steps = self._parted = self._unreadable = 0
        self._first: int | None = None
        self._largest = np.zeros(size)
        self._sum = np.zeros(size)

    def ask(self, policy: Policy, observation: dict[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - any action
        """Ask the policy for an action; an error of its own is said in a line, with the place."""
        try:
            return policy(observation)
        except Exception as error:
            where = f"episode {self._episode}, step {self._steps + 1}"
            raise PolicyError(f"the policy raised in {where}: {type(error).__name__}: {error}") from error

    def compare(self, ours: FloatArray | None, theirs: FloatArray | None) -> None:
        self._steps += 1
        if ours is None or theirs is None:
            self._unreadable += 1
            has_parted = True
        else:
            apart = np.abs(ours - theirs)
            self._largest = np.maximum(self._largest, apart)
            self._sum += apart
            has_parted = bool((apart > self._tolerance).any())
        self._parted += has_parted
        if has_parted and self._first is None:
            self._first = self._steps

    def parting(self) -> PolicyDivergence:
        count = self._steps - self._unreadable
        nothing = np.full_like(self._sum, np.nan)
        return PolicyDivergence(
            episode=self._episode,
            steps=self._steps,
            first=self._first,
            parted=self._parted,
            largest=self._largest if count else nothing,
            mean=self._sum / count if count else nothing,
            unreadable=self._unreadable,
        )


def _read(action: Any, layout: ActionLayout) -> FloatArray | None:  # noqa: ANN401 - policies return anything
    """Return a flat vector, or None where it is no action."""
    try:
        return parse_action(action, layout)
    except MalformedActionError:
        return None


def _recorded_rows(run: Run) -> int | None:
    """Return how many rows a run has, where its summary has the number."""
    try:
        summary = read_json(run.path / "summary.json")
        return int(summary["steps"]) + int(summary["episodes"])
    except (ValueError, KeyError, TypeError):
        return None
