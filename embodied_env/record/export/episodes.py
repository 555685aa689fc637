"""A run as steps that can be learnt from: what was seen, what was done about it, and what came of it.

A row of a transition has the observation that its step *returned*. A step here has the one that its action was chosen
on, so that the last of an episode is left over: it comes with the episode's `Ending`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import RecordError
from embodied_env.record.export.fields import ArrayField, Arrays, Leaves, leaves_of_space, leaves_of_value, parts
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.rows import RESET, Row
from embodied_env.record.run import Run
from embodied_env.record.summary import OUTSIDE

_TRANSPARENT = {"RecordTransitions", "TimeLimit", "RecordEpisodeStatistics", "OrderEnforcing", "PassiveEnvChecker"}
"""Wrappers that change no observation and no action."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        episode_index: of the export, from 0.
        step_index: in its episode, from 0.
        timestamp_s: from the episode's first observation to this one, by the steady clock; None: not known.
        observed_ns: when `observation` was frozen, steady; None: not known.
        published_ns: when the command left, steady; None: not known.
        observation: what the action was chosen on.
        action: what was requested, as the agent asked; NaN where it asked for no such thing.
        action_applied: what was executed, in units of the contract's action space; NaN where it is not known.
        reward: of the step; NaN when it is no number.
        terminated: the world ended the episode.
        truncated: the episode was cut.
        end_reason: why it ended; "" while it goes on.
        is_success: the task was done.
        evaluator: what only the evaluator saw when `observation` was frozen; empty unless asked for.
        seen: `observation` in types of JSON.
        row: the row of the step.
    """

    episode_index: int
    step_index: int
    timestamp_s: float | None
    observed_ns: int | None
    published_ns: int | None
    observation: Arrays
    action: Arrays
    action_applied: Arrays
    reward: float
    terminated: bool
    truncated: bool
    end_reason: str
    is_success: bool
    evaluator: Arrays
    seen: Any
    row: Row


@dataclass(frozen=True, kw_only=True)
class EpisodeEnd:
    """How an episode of one step or more ended.

    Attributes:
        episode_index: of the export, from 0.
        length: steps.
        seed: that the reset was given, or None.
        world_seed: that the world was reset with, or None where it is not known.
        ended: False: the episode was cut short by a reset, or by the end of the run.
        end_reason: "" unless it ended.
        is_success: the task was done.
        observation: the last.
        evaluator: as of a step, beside the last observation.
    """

    episode_index: int
    length: int
    seed: int | None
    world_seed: int | None
    ended: bool
    end_reason: str
    is_success: bool
    observation: Arrays
    evaluator: Arrays


@dataclass
class _Episode:
    """The episode that is being read."""

    index: int
    reset: Row
    seen: Any
    evaluator: Any
    length: int = 0
    first_ns: int | None = None
    newest: Step | None = None


@dataclass
class EpisodeReader:
    """A run to be exported.

    Attributes:
        run: the run.
        contract: that it was made under.
        observation: the leaves of an observation, as the agent saw it.
        action: the leaves of an action, as the agent asked.
        applied: the leaves of an action, as the contract has it.
        evaluator: the leaves of what only the evaluator sees; empty unless asked for.
        has_wrappers: wrappers may have changed observations or actions: their spaces are read off the first rows.
        left_out: steps behind the end of their episode, and resets without a step, which are in no episode.
    """

    run: Run
    contract: Contract
    observation: Leaves
    action: Leaves
    applied: Leaves
    evaluator: Leaves
    has_wrappers: bool
    left_out: dict[str, int] = field(default_factory=lambda: {"steps": 0, "resets": 0})

    def __iter__(self) -> Iterator[Step | EpisodeEnd]:
        """Yield each step, and after the last of an episode its ending.

        Raises:
            RecordError: when an observation is not of the run's own space.
        """
        episode: _Episode | None = None
        count = 0
        for row in self.run.rows():
            if row["schema"] == RESET:
                if episode is not None:
                    yield from self._closed(episode, ended=False)
                    count += episode.length > 0
                episode = self._begun(count, row)
            elif episode is None:
                self.left_out["steps"] += 1
            else:
                step = self._step(episode, row)
                yield step
                if step.terminated or step.truncated:
                    yield from self._closed(episode, ended=True)
                    count, episode = count + 1, None
        if episode is not None:
            yield from self._closed(episode, ended=False)

    def _begun(self, index: int, row: Row) -> _Episode:
        return _Episode(index=index, reset=row, seen=row["observation"], evaluator=_told(row))

    def _step(self, episode: _Episode, row: Row) -> Step:
        info, inner = row["info"], row["inner"]
        stamps = {} if inner is None else inner["stamps_ns"]
        observed_ns = stamps.get("previous_observed")
        if episode.newest is None:
            episode.first_ns = observed_ns
        first_ns = episode.first_ns
        ended = row["terminated"] is True or row["truncated"] is True
        step = Step(
            episode_index=episode.index,
            step_index=episode.length,
            timestamp_s=None if observed_ns is None or first_ns is None else (observed_ns - first_ns) / NS_PER_S,
            observed_ns=observed_ns,
            published_ns=stamps.get("published"),
            observation=self._arrays(self.observation, episode.seen, row["row"]),
            action=self._asked(self.action, row["action"]),
            action_applied=self._asked(self.applied, None if inner is None else info.get("action", {}).get("applied")),
            reward=float(row["reward"]) if isinstance(row["reward"], (int, float)) else float("nan"),
            terminated=row["terminated"] is True,
            truncated=row["truncated"] is True,
            end_reason=str(info.get("end_reason") or OUTSIDE) if ended else "",
            is_success=info.get("is_success") is True,
            evaluator=self._asked(self.evaluator, episode.evaluator),
            seen=episode.seen,
            row=row,
        )
        episode.length += 1
        episode.newest, episode.seen, episode.evaluator = step, row["observation"], _told(row)
        return step

    def _closed(self, episode: _Episode, *, ended: bool) -> Iterator[EpisodeEnd]:
        newest = episode.newest
        if newest is None:
            self.left_out["resets"] += 1
            return
        inner = episode.reset["inner"]
        yield EpisodeEnd(
            episode_index=episode.index,
            length=episode.length,
            seed=episode.reset["seed"] if isinstance(episode.reset["seed"], int) else None,
            world_seed=None if inner is None else inner["seed_applied"],
            ended=ended,
            end_reason=newest.end_reason,
            is_success=newest.is_success,
            observation=self._arrays(self.observation, episode.seen, newest.row["row"]),
            evaluator=self._asked(self.evaluator, episode.evaluator),
        )

    def _arrays(self, leaves: Leaves, value: Any, row: int) -> Arrays:  # noqa: ANN401 - JSON types
        found, arrays = parts(value), {}
        for key, leaf in leaves.items():
            array = leaf.array(found.get(key), self.run.array)
            if array is None:
                raise RecordError(
                    f"row {row}: the observation {key!r} is {found.get(key)!r:.200}; allowed: {leaf.dtype} {leaf.shape}"
                )
            arrays[key] = array
        return arrays

    def _asked(self, leaves: Leaves, value: Any) -> Arrays:  # noqa: ANN401 - JSON types
        """Return the arrays of an action, which may be anything: what has no such form is not known."""
        found = parts(value)
        made = {key: leaf.array(found.get(key), self.run.array) for key, leaf in leaves.items()}
        return {key: leaves[key].unknown() if array is None else array for key, array in made.items()}


def open_episodes(run: Run, *, evaluator: bool = False) -> EpisodeReader:
    """Prepare `run` for export, with the values of the evaluator if asked for.

    Raises:
        RecordError: when its manifest has no contract that can be read, or it has no step.
    """
    contract = contract_of_manifest(run.manifest)
    has_wrappers = any(_name(layer) not in _TRANSPARENT for layer in run.manifest["wrappers"][:-1])
    applied = leaves_of_space(contract.action_space)
    reset = next(run.resets(), None)
    first = next(run.transitions(), None)
    if reset is None or first is None:
        raise RecordError(f"{run.path}: there is no step to export")
    told = leaves_of_value(_told(reset), run.array) if evaluator and _told(reset) else {}
    return EpisodeReader(
        run=run,
        contract=contract,
        observation=_seen(leaves_of_value(reset["observation"], run.array))
        if has_wrappers
        else leaves_of_space(contract.observation_space),
        action=_seen(leaves_of_value(first["action"], run.array)) if has_wrappers else applied,
        applied=applied,
        evaluator=_seen(told),
        has_wrappers=has_wrappers,
    )


def _told(row: Row) -> Mapping[str, Any]:
    """Return what only the evaluator saw with the observation of `row`."""
    inner = row["inner"]
    return {} if inner is None else inner.get("evaluator", {})


def _seen(leaves: dict[str, ArrayField]) -> dict[str, ArrayField]:
    """Return `leaves` that were read off a value: numbers in lists become float64, which has a NaN."""
    return {
        key: leaf if leaf.is_image or leaf.dtype == "float32" else ArrayField(dtype="float64", shape=leaf.shape)
        for key, leaf in leaves.items()
    }


def _name(layer: Mapping[str, Any]) -> str:
    return str(layer["class"]).rpartition(":")[2]
