"""Read a run as learning steps, each with the observation of its action and its results.

The row of a transition has the observation that its step returned. An `ExportedStep` has the one before its action, so
that the last observation of an episode comes with its `EpisodeEnd`.
"""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.code_types import Severity
from embodied_env.core.plugin_loading import import_optional
from embodied_env.errors import RecordError
from embodied_env.record.arrays import is_reference
from embodied_env.record.manifest import contract_of_manifest, world_of
from embodied_env.record.row_types import RESET, RecordedReset, RecordedRow, RecordedTransition
from embodied_env.record.rows import is_no_action, is_staged
from embodied_env.record.run import Run
from embodied_env.record.summary import OUTSIDE
from embodied_env.timing.clock import NS_PER_S

_TRANSPARENT = {"RecordTransitions", "TimeLimit", "RecordEpisodeStatistics", "OrderEnforcing", "PassiveEnvChecker"}
"""Wrappers that change no observation and no action."""

REQUESTED, APPLIED, REFUSED, DRY_RUN = "requested", "applied", "refused", "dry run"  # sources of an action

THE_SOURCES = (
    "requested: by the agent, or by an action stage in its place, executed within the limits; applied: the agent gave "
    "no valid action, and this was executed instead; refused: requested, and not executed, because the robot braked; "
    "dry run: not sent to a robot"
)


@dataclass(frozen=True, kw_only=True)
class ExportedStep:
    """One step, with NaN for unknown values of its arrays, but never of its action."""

    episode_index: int  # in the export, from 0
    step_index: int  # in its episode, from 0
    timestamp_s: float | None  # from the episode's first observation to this one, world time in lockstep, else steady
    observed_ns: int | None  # when `observation` was taken, steady
    published_ns: int | None  # when the command was published, steady
    observation: Arrays  # observation that the action was based on
    action: Arrays  # as requested by the agent, or as applied without a finite request
    action_source: str  # see `THE_SOURCES`
    is_gap: bool  # the agent gave no valid action
    action_applied: Arrays  # that was executed, in units of the contract's action space
    reward: float  # NaN if it is not a number
    terminated: bool
    truncated: bool
    end_reason: str  # "" before the end of the episode
    is_success: bool
    evaluator: Arrays  # the evaluator's values when `observation` was taken, empty unless requested
    seen: Any  # `observation` in JSON types
    row: RecordedTransition


@dataclass(frozen=True, kw_only=True)
class EpisodeEnd:
    """The end of an episode of one step or more."""

    episode_index: int  # in the export, from 0
    length: int  # steps
    seed: int | None  # given to the reset, None if the episode does not begin there
    world_seed: int | None  # with which the world was reset
    ended: bool  # False: cut short by a reset, a step without an action or the end of the run
    end_reason: str  # "" unless it ended
    is_success: bool
    observation: Arrays  # the last one
    evaluator: Arrays  # the evaluator's values with the last observation


@dataclass
class _Episode:
    index: int
    reset: RecordedReset
    before: RecordedRow  # the newest row, with the observation for the next action
    at_reset: bool = True  # begins there, not after a step without an action
    length: int = 0
    first_ns: int | None = None
    newest: ExportedStep | None = None


@dataclass
class EpisodeReader:
    """Iterates over the steps and episodes of a run."""

    run: Run
    contract: Contract
    observation: Leaves  # as the agent received it
    action: Leaves  # as the agent requested it
    applied: Leaves  # an action of the contract, in float64
    evaluator: Leaves  # empty unless requested
    has_wrappers: bool  # that may change observations or actions, so that the leaves are those of the first rows
    is_dry: bool = False  # no action was executed
    is_lockstep: bool = False  # the world waited for the agent
    split_at_gaps: bool = False  # leave out the steps without an action, and end the episode before each
    gaps: int = 0  # steps without an action so far
    sources: Counter[str] = field(default_factory=Counter)  # steps so far by `action_source`
    left_out: dict[str, int] = field(default_factory=lambda: {"steps": 0, "resets": 0})  # outside of episodes

    def __iter__(self) -> Iterator[ExportedStep | EpisodeEnd]:
        """Yield steps and episodes, or raise RecordError for an observation of another space."""
        episode: _Episode | None = None
        count = 0
        for row in self.run.rows():
            if row["schema"] == RESET:
                if episode is not None:
                    yield from self._end(episode, ended=False)
                    count += episode.length > 0
                episode = _Episode(index=count, reset=row, before=row)
            elif episode is None:
                self.left_out["steps"] += 1
            elif not is_finite(requested := self._arrays(self.action, gated_action(row))) and self.split_at_gaps:
                self.gaps += 1
                if episode.length:
                    yield from self._end(episode, ended=False)
                    count += 1
                episode = replace(episode, index=count, before=row, at_reset=False, length=0, newest=None)
                if row["terminated"] or row["truncated"]:
                    episode = None
            else:
                step = self._step(episode, row, requested)
                self.gaps += step.is_gap
                self.sources[step.action_source] += 1
                yield step
                if step.terminated or step.truncated:
                    yield from self._end(episode, ended=True)
                    count, episode = count + 1, None
        if episode is not None:
            yield from self._end(episode, ended=False)

    def _step(self, episode: _Episode, row: RecordedTransition, requested: Arrays) -> ExportedStep:
        info: Mapping[str, Any] = row["info"]
        stamps, before = None if row["inner"] is None else row["inner"]["stamps_ns"], episode.before
        observed_ns = None if stamps is None else stamps["previous_observed"]
        seen_ns = observed_ns
        if self.is_lockstep:  # the world waits, so the time of the host says nothing about its motion
            seen_ns = None if before["inner"] is None else before["inner"]["now_ns"]
        if episode.newest is None:
            episode.first_ns = seen_ns
        first_ns = episode.first_ns
        action, source = self._action(row, requested)
        step = ExportedStep(
            episode_index=episode.index,
            step_index=episode.length,
            timestamp_s=None if seen_ns is None or first_ns is None else (seen_ns - first_ns) / NS_PER_S,
            observed_ns=observed_ns,
            published_ns=None if stamps is None else stamps["published"],
            observation=self._observation(before["observation"], row["row"]),
            action=action,
            action_source=DRY_RUN if self.is_dry else source,
            is_gap=source == APPLIED,
            action_applied=self._arrays(self.applied, _applied(row)),
            reward=float(row["reward"]),
            terminated=row["terminated"],
            truncated=row["truncated"],
            end_reason=str(info.get("end_reason") or OUTSIDE) if row["terminated"] or row["truncated"] else "",
            is_success=info.get("is_success") is True,
            evaluator=self._arrays(self.evaluator, _evaluator_values(before)),
            seen=before["observation"],
            row=row,
        )
        episode.length += 1
        episode.newest, episode.before = step, row
        return step

    def _end(self, episode: _Episode, *, ended: bool) -> Iterator[EpisodeEnd]:
        newest, reset, last = episode.newest, episode.reset, episode.before
        if newest is None:
            self.left_out["resets"] += last is reset
            return
        yield EpisodeEnd(
            episode_index=episode.index,
            length=episode.length,
            seed=reset["seed"] if episode.at_reset else None,
            world_seed=None if reset["inner"] is None else reset["inner"]["seed_applied"],
            ended=ended,
            end_reason=newest.end_reason,
            is_success=newest.is_success,
            observation=self._observation(last["observation"], last["row"]),
            evaluator=self._arrays(self.evaluator, _evaluator_values(last)),
        )

    def _observation(self, value: Any, row: int) -> Arrays:  # noqa: ANN401 - JSON types
        found, arrays = flatten(value), {}
        for key, leaf in self.observation.items():
            array = leaf.array(found.get(key), self.run.array)
            if array is None:
                expected = f"{leaf.dtype} of shape {leaf.shape}"
                raise RecordError(f"row {row}: observation {key!r} is {found.get(key)!r:.200} (expected {expected})")
            arrays[key] = array
        return arrays

    def _action(self, row: RecordedTransition, requested: Arrays) -> tuple[Arrays, str]:
        """Return the action of a step and its source, or raise RecordError if it is not known."""
        inner = row["inner"]
        if is_finite(requested):
            is_executed = inner is not None and Severity[inner["report"]["disposition"]] < Severity.HOLD
            return requested, REQUESTED if is_executed else REFUSED
        applied = self._arrays(self.action, _applied(row))
        if self.has_wrappers or not is_finite(applied):
            problem = f"row {row['row']}: no action, and the applied one is not known in the units of the agent"
            raise RecordError(f"{problem}; cut the episodes at such steps with split_at_gaps (--split-at-gaps)")
        return applied, APPLIED

    def _arrays(self, leaves: Leaves, value: Any) -> Arrays:  # noqa: ANN401 - JSON types
        """Return the arrays of any value, such as an action, unknown where they do not fit."""
        found = flatten(value)
        made = {key: leaf.array(found.get(key), self.run.array) for key, leaf in leaves.items()}
        return {key: leaves[key].unknown() if array is None else array for key, array in made.items()}


def open_episodes(run: Run, *, evaluator: bool = False, split_at_gaps: bool = False) -> EpisodeReader:
    """Prepare `run` for export, or raise RecordError if it has no steps."""
    contract = contract_of_manifest(run.manifest)
    names = (str(layer["class"]).rpartition(":")[2] for layer in run.manifest["wrappers"][:-1])
    has_wrappers = any(name not in _TRANSPARENT for name in names)
    reset = next(run.resets(), None)
    steps = run.transitions()
    first = next(steps, None)
    if reset is None or first is None:
        raise RecordError(f"no steps to export: {run.path} (expected a run with a reset and a step)")
    observation, action = leaves_of_space(contract.observation_space), leaves_of_space(contract.action_space)
    values = _evaluator_values(reset) if evaluator else {}
    if has_wrappers:  # their actions have the form of the first one
        first = next((row for row in (first, *steps) if not is_no_action(row["action"])), first)
    return EpisodeReader(
        run=run,
        contract=contract,
        observation=leaves_of_value(reset["observation"], run.array) if has_wrappers else observation,
        action=leaves_of_value(gated_action(first), run.array) if has_wrappers else action,
        applied={key: replace(leaf, dtype="float64") for key, leaf in action.items()},  # in the gate's precision
        evaluator=leaves_of_value(values, run.array) if values else {},
        has_wrappers=has_wrappers,
        is_dry=world_of(run.manifest) == DRY_RUN,
        is_lockstep=run.manifest["pacing"] == "lockstep",
        split_at_gaps=split_at_gaps,
    )


def gated_action(row: RecordedTransition) -> Any:  # noqa: ANN401 - JSON types
    """Return the agent's action, or that of the last action stage, executed in its place."""
    return row["action"] if row["inner"] is None or not is_staged(row["inner"]) else row["inner"]["action"]


def _applied(row: RecordedTransition) -> Any:  # noqa: ANN401 - JSON types
    return None if row["inner"] is None else row["info"]["action"]["applied"]


def _evaluator_values(row: RecordedRow) -> Mapping[str, Any]:
    return {} if row["inner"] is None else row["inner"]["evaluator"]


Arrays = Mapping[str, NDArray[Any]]  # arrays by key, which is "" for a value that is a single array
Load = Callable[[Mapping[str, Any]], NDArray[Any]]  # returns the array of a reference
library = functools.partial(import_optional, needed_for="this export")
_PNG_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, kw_only=True)
class ArrayField:
    """One array of a space."""

    dtype: str  # NumPy name
    shape: tuple[int, ...]  # shape of one value

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def is_image(self) -> bool:
        """Whether it is a uint8 image of 1, 3 or 4 channels, which PNG stores losslessly."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in _PNG_CHANNELS

    def array(self, value: Any, load: Load) -> NDArray[Any] | None:  # noqa: ANN401 - JSON types
        """Return a recorded value as an array, null as NaN, or None if it does not have this shape."""
        found = _to_array(value, load)
        if found is None or found.shape != self.shape:
            return None
        dtype = np.dtype(self.dtype)
        if dtype.kind != "f" and found.dtype.kind == "f":  # an unknown integer cannot be represented
            return None
        return found.astype(dtype, copy=False)

    def unknown(self) -> NDArray[Any]:
        """Return NaN in this shape, or raise RecordError for a dtype without NaN."""
        if np.dtype(self.dtype).kind != "f":
            raise RecordError(f"cannot export an unknown value as {self.dtype} {self.shape} (expected a float dtype)")
        return np.full(self.shape, np.nan, self.dtype)


Leaves = Mapping[str, ArrayField]


def is_finite(arrays: Arrays) -> bool:
    """Return whether every element is known and finite."""
    return all(np.isfinite(array).all() for array in arrays.values())


def leaves_of_space(space: gymnasium.Space[Any]) -> dict[str, ArrayField]:
    """Return the leaves of a Box, or of a Dict of Boxes."""
    boxes = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {key: ArrayField(dtype=str(np.dtype(box.dtype)), shape=tuple(box.shape or ())) for key, box in boxes.items()}


def leaves_of_value(value: Any, load: Load) -> dict[str, ArrayField]:  # noqa: ANN401 - JSON types
    """Return the leaves of a recorded value, other numbers as float64, or raise RecordError."""
    leaves = {}
    for key, item in flatten(value).items():
        found = _to_array(item, load)
        if found is None:
            raise RecordError(f"cannot export {key or 'value'}: {item!r:.200} (expected a numeric array)")
        leaf = ArrayField(dtype=str(found.dtype), shape=found.shape)
        keeps_dtype = leaf.is_image or leaf.dtype == "float32"
        leaves[key] = leaf if keeps_dtype else ArrayField(dtype="float64", shape=leaf.shape)
    return leaves


def flatten(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
    """Return the arrays of a value by key, in JSON types and with dotted keys for nested dicts."""
    if not isinstance(value, Mapping) or is_reference(value):
        return {"": value}
    found = {}
    for key, item in value.items():
        for below, leaf in flatten(item).items():
            found[f"{key}.{below}" if below else key] = leaf
    return found


def named(prefix: str, key: str) -> str:
    """Return the name of a column, such as ``observation.joints_position`` or ``action``."""
    return f"{prefix}.{key}" if key else prefix


def _to_array(value: Any, load: Load) -> NDArray[Any] | None:  # noqa: ANN401 - JSON types
    """Return a reference or nested lists as an array, null as NaN, or None for other values."""
    if is_reference(value):
        return load(value)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" else None


def png(image: NDArray[Any]) -> bytes:
    """Return `image`, uint8 of (height, width, 1, 3 or 4), as PNG."""
    pillow = library("PIL.Image")
    file = io.BytesIO()
    pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, format="PNG", compress_level=1)
    return file.getvalue()
