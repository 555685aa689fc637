"""Open-loop playback of an episode of a recorded run as a policy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_schema import INSTRUCTION
from embodied_env.contract.fingerprint import differences, meaning
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.policy import NoAction, PolicyIdentity
from embodied_env.core.types import EpisodeStart, Snapshot
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.replay.playback_deviations import PLAYBACK, rehearse
from embodied_env.extensions.replay.row_decoder import RowDecoder
from embodied_env.policies.policy_model import ArraySpec, Inputs, Outputs, PolicyModel
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.row_types import RESET, ResetRow, TransitionRow
from embodied_env.record.run import Run, read_run

ACTIONS = ("requested", "applied")  # of a step, by the policy and by the gate
_VECTORS = ("requested", "applied", "applied_si")  # of a step, one value per joint
_MOST_DIFFERENCES = 3  # of two contracts, in a message
_CORRECTIONS = (0, 1, -1, 2, -2)  # of an applied action, in spacings of floating-point numbers
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedEpisode:
    """One episode of a run that is played."""

    number: int  # in its run, from 1
    rows: tuple[int, ...]  # number of the row of each step
    actions: FloatArray  # shape (n_steps, n_joints), in action units, NaN for a step without an action
    commands: FloatArray  # published values, likewise, in the joint's unit
    reset: Snapshot
    instruction: str  # prompt at its reset, or ""
    start: FloatArray  # measured joint positions, shape (n_joints,), NaN without a sensor


def load_run(location: str, *, part: str | None = None, actions: str = "requested") -> PolicyModel:
    """Return the model that plays a recorded run, its steps one after the other.

    Args:
        location: the run directory.
        part: number of the episode, from 1; None: all in turn, and again from the first.
        actions: ``requested`` by the policy of the run, or ``applied`` by its gate.

    Raises:
        UsageError: for an episode that the run does not have.
        RecordError: if it is not a run, or a row of an episode is missing.
    """
    if actions not in ACTIONS:
        raise UsageError(f"unknown actions of a recorded run: {one_of(str(actions), ACTIONS)}")
    run, wanted = read_run(location), "each" if part is None else part.removeprefix("0")
    if run.problem:
        _log.warning("the run to play is not clean: %s", run.problem)
    episodes = [each for each in read_episodes(run, actions) if part is None or str(each.number) == wanted]
    if not (playable := [each for each in episodes if each.rows]):
        expected = "expected the number, from 1, of one with a step"
        raise UsageError(f"no such episode of the run {location}: {part or wanted!r} ({expected})")
    return RunModel(run, playable, actions, name=f"run:{location}" + ("" if part is None else f"#{part}"))


def read_episodes(run: Run, actions: str) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a run in order, or raise RecordError for a missing row."""
    contract = contract_of_manifest(run.manifest)
    decoder, layout = RowDecoder(contract, run.array), ActionLayout(contract)
    joints = MeasuredJoints(contract, layout.joints)
    reset: ResetRow | None = None
    steps: list[TransitionRow] = []
    number = 0

    def episode(reset: ResetRow) -> RecordedEpisode:
        snapshot = decoder.reset(reset)
        _check_values(run, snapshot, steps, layout.size)
        reports: list[Mapping[str, Any]] = [step["inner"]["report"] for step in steps]
        requested, played, commands = (
            np.array([report[key] for report in reports], dtype=np.float64).reshape(len(steps), layout.size)
            for key in ("requested", actions, "applied_si")
        )
        is_free = np.array([Severity[each["disposition"]] < Severity.HOLD for each in reports], dtype=np.bool_)
        played = np.where(_is_binary(layout) & is_free[:, np.newaxis], requested, played)
        return RecordedEpisode(
            number=number,
            rows=tuple(step["row"] for step in steps),
            actions=played,
            commands=commands,
            reset=snapshot,
            instruction=reset["info"]["instruction"],
            start=joints.positions_or_nan(snapshot),
        )

    for row in (row for row in run.rows() if row["inner"] is not None):
        if row["schema"] == RESET:
            if reset is not None:
                yield episode(reset)
            reset, steps, number = row, [], number + 1
        elif reset is not None:
            if row["info"]["step_index"] != len(steps) + 1:
                raise RecordError(f"{run.path}: a row before row {row['row']} is missing, in episode {number}")
            steps.append(row)
    if reset is not None:
        yield episode(reset)


def _check_values(run: Run, reset: Snapshot, steps: list[TransitionRow], size: int) -> None:
    """Raise RecordError for a seed or a number of values that no environment records."""
    if reset.reset is not None and (reset.reset.seed_applied or 0) < 0:
        raise RecordError(f"{run.path}: seed {reset.reset.seed_applied} of a reset (expected >= 0)")
    for step in steps:
        report: Mapping[str, Any] = step["inner"]["report"]
        if any(len(report[key]) != size for key in _VECTORS):
            raise RecordError(f"{run.path}: row {step['row']} has too many or too few values (expected {size})")


class RunModel(PolicyModel):
    """Plays the episodes of a run, one recorded action at each inference.

    What is observed has no effect. After the last action there is no action, so that the robot brakes and the episode
    ends as ``policy_lost``.
    """

    account_name = PLAYBACK

    def __init__(self, run: Run, episodes: list[RecordedEpisode], actions: str, *, name: str) -> None:
        self.contract = contract_of_manifest(run.manifest)
        chain = run.manifest.get("chain")
        self.identity = PolicyIdentity(name=name, format="run", sha256=None if chain is None else chain["head"])
        self.inputs, self._layout = None, ActionLayout(self.contract)
        self.outputs = {"action": ArraySpec(shape=(self._layout.size,), dtype=np.dtype(np.float64))}
        self.control_period_s = self.contract.control_period_s
        self._path, self._episodes, self._are_applied = run.path, episodes, actions == "applied"
        self._warning = f"the run is not sound: {run.problem}; " if run.problem else ""
        self._target: Contract | None = None  # the contract that it plays under, unless a policy file maps the actions
        self._episode, self._next = episodes[0], 0
        self._account: dict[str, int] | None = None
        self._reached = np.zeros(self._layout.size)  # positions after the last applied action, if no gate changed it

    def check_contract(self, contract: Contract, /) -> None:
        """Raise UsageError with the first differences unless `contract` is that of the run."""
        self._target = contract
        if contract.fingerprint == self.contract.fingerprint:
            return
        found = differences(meaning(self.contract, with_defaults=True), meaning(contract, with_defaults=True))
        shown = [f"{path}: {a!r:.60} in the run, {b!r:.60} here" for path, a, b in found]
        more = f"; {len(shown) - _MOST_DIFFERENCES} more" if len(shown) > _MOST_DIFFERENCES else ""
        raise UsageError(
            f"{self.identity.name} is a run of another contract: {'; '.join(shown[:_MOST_DIFFERENCES])}{more} "
            f"(expected {contract.name}, fingerprint {contract.fingerprint:.12}); map its actions in a policy file"
        )

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - nothing is drawn
        """Begin the episode of this index, or the only one."""
        self._episode, self._next = self._episodes[episode_index % len(self._episodes)], 0
        self._account = None

    def infer(self, inputs: Inputs, /) -> Outputs | NoAction:  # noqa: ARG002 - open loop
        """Return the next recorded action."""
        index, episode = self._next, self._episode
        if index >= len(episode.rows):
            return NoAction(f"the recorded episode {episode.number} has ended")
        self._next = index + 1
        self._account = {"row": episode.rows[index], "index": index}
        action = self._applied(index) if self._are_applied else episode.actions[index]
        if not np.isfinite(action).all():
            return NoAction(f"no action in row {episode.rows[index]} of the run; play it with ?actions=applied")
        return {"action": action}

    def take_account(self) -> Mapping[str, int] | None:
        """Return the row and the index, from 0, of the last action, or None at the end."""
        account, self._account = self._account, None
        return account

    @property
    def start(self) -> EpisodeStart:
        """The start of the episode, under another contract without its seed and its reset options."""
        episode, report = self._episode, self._episode.reset.reset
        measured = dict(zip(self._layout.joints, episode.start.tolist(), strict=True))
        start = EpisodeStart(
            label=f"episode {episode.number} of {self._path}",
            positions={joint: position for joint, position in measured.items() if np.isfinite(position)},
            rehearse=self._rehearse,
        )
        if self._target is None or report is None:
            return start
        options: dict[str, Any] = {INSTRUCTION: episode.instruction} if episode.instruction else {}
        options |= {name: value for name, value in report.sampled.items() if name in self.contract.reset_options}
        return replace(start, seed=report.seed_applied, options=options)

    def _applied(self, index: int) -> FloatArray:
        """Return the action that leads to the recorded command, bit for bit where one does."""
        episode, layout = self._episode, self._layout
        command, action = episode.commands[index], episode.actions[index]
        base = np.where(layout.is_delta, self._reached if index else episode.start, 0.0)
        nearest = layout.scale.from_si(command - base)
        for spacings in _CORRECTIONS:
            if (is_reached := (base + layout.scale.to_si(action) == command) | _is_binary(layout)).all():
                break
            action = np.where(is_reached, action, nearest + spacings * np.spacing(nearest))
        self._reached = base + layout.scale.to_si(action)
        return np.asarray(action)

    def _rehearse(self) -> str:
        label = f"{self._warning}dry run of {self.start.label}, {len(self._episode.rows)} steps"
        if self._target is None:
            return f"{label}: a policy file maps its actions, so that no command was compared"
        actions = [self._applied(i) if self._are_applied else each for i, each in enumerate(self._episode.actions)]
        return f"{label}: {rehearse(actions, self._episode.commands, self._target, self.start)}"


def _is_binary(layout: ActionLayout) -> NDArray[np.bool_]:
    """Return which joints only open or close, so that an action leads to one of two values."""
    return ~np.isnan(layout.scale.threshold)
