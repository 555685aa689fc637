"""Compare a rehearsal without the robot, or the run of a playback, with the recorded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_schema import TaskSpec
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.policy import NoAction
from embodied_env.core.types import EpisodeStart
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendError, BackendLostError
from embodied_env.extensions.replay.row_decoder import RowDecoder
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import contract_of_manifest, write_json
from embodied_env.record.row_types import RESET, TransitionRow
from embodied_env.record.run import Run, read_run

PLAYBACK = "playback"  # name in ``info["annotations"]`` of the account of a played step
DEVIATIONS = "playback.json"  # file in the directory of a run that played another
_SCHEMA = "embodied_env/playback/1"
_TIMEOUT_S = 60.0  # of a reset of the rehearsal, in which joints drive to the start
_LARGEST = 64  # components of a field that is compared, as an image has more
_COMMAND = "command "  # begins the name of the column of a command
_ROUNDING = 1e-12  # of an applied action that no displacement or unit expresses bit for bit
_DIVERGED, _LEAST = 0.05, 1e-6  # share of the recorded range of a field, and difference, above which a reading diverged


class CommandDeviations:
    """Differences of commands from the recorded ones, with codes of the gates."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.steps = 0
        self.changed: list[dict[str, Any]] = []  # index and codes of each step with another command

    def add(self, index: int, command: FloatArray, recorded: FloatArray, codes: Sequence[str]) -> None:
        """Compare the command of a step with these findings of the gate."""
        self.steps += 1
        if command.tobytes() != recorded.tobytes():
            is_rounded = np.allclose(command, recorded, rtol=_ROUNDING, atol=_ROUNDING)
            found = list(dict.fromkeys(codes)) or ["rounding" if is_rounded else "no gate"]
            self.changed.append({"index": index, "codes": found})
            self.codes.update(found)

    def describe(self, period_s: float) -> str:
        """Return the result in text."""
        if not self.changed:
            return f"all {self.steps} commands equal bit for bit"
        first = self.changed[0]["index"]
        codes = ", ".join(f"{code} {count}" for code, count in self.codes.most_common())
        where = f"first in step {first + 1}, at {first * period_s:.3f} s"
        return f"{len(self.changed)} of {self.steps} commands differ, {where}: {codes}"


def rehearse(actions: Sequence[FloatArray], commands: FloatArray, contract: Contract, start: EpisodeStart) -> str:
    """Play actions on joints that follow exactly, and return how the commands deviate.

    The deviations are those from the recorded `commands`. The limits and command filters of `contract` apply. Forces
    and loads are not known without a robot.
    """
    no_loads: Any = {"forces": {}, "loads": {}}
    safety = replace(contract.safety, **no_loads)
    task = TaskSpec(type="no_goal", parameters={})
    ideal = replace(contract, safety=safety, task=task, blocks={})  # an action stage may open a device
    layout, deviations = ActionLayout(contract), CommandDeviations()
    largest = np.zeros(layout.size)
    with EmbodiedEnv(ideal, backend="fake", reset_timeout_s=_TIMEOUT_S) as env:
        env.start_from(replace(start, options={}))
        try:
            env.reset(seed=0)
        except BackendError as error:
            return f"it failed, {error}"
        for index, action in enumerate(actions):
            is_known = np.isfinite(action).all()
            *_, terminated, truncated, _ = env.step(layout.as_action(action) if is_known else NoAction("none recorded"))
            if (made := env.last_transition) is not None:
                codes = [finding.code for finding in made.report.findings]
                deviations.add(index, made.report.applied_si, commands[index], codes)
                largest = np.fmax(largest, np.abs(made.report.applied_si - commands[index]))
            if terminated or truncated:
                break
    joint = int(np.argmax(largest))
    furthest = f"; largest difference {largest[joint]:.4g} of {layout.joints[joint]}" if deviations.changed else ""
    return deviations.describe(contract.control_period_s) + furthest


def write_deviations(played: str | Path, recorded: str | Path) -> list[str]:
    """Compare a run with the one that it played, and return the result in text.

    The result is also written into the run as ``playback.json``. Per command and per component of a measured field it
    has the difference over time, its RMS and largest value, and when the two diverged: a command when it first differs,
    a reading when it differs by 5 % of the recorded range.

    Raises:
        RecordError: if one of them is not a run.
    """
    run, other = read_run(played), read_run(recorded)
    problem = other.problem or _other_run(run, other)
    reader, source = _Values(run), _Values(other)
    period_s = reader.contract.control_period_s
    wanted = {row["row"]: source.read(row) for row in other.transitions() if row["inner"] is not None}
    episodes: list[_PlayedEpisode] = []
    for row in run.rows():
        if row["inner"] is None or not (episodes or row["schema"] == RESET):
            continue
        if row["schema"] == RESET:
            episodes.append(_PlayedEpisode(period_s))
            continue
        episodes[-1].end_reason = row["info"]["end_reason"]
        account = row["info"].get("annotations", {}).get(PLAYBACK)
        number = account.get("row") if isinstance(account, Mapping) else None
        if isinstance(number, int) and number in wanted:
            episodes[-1].add(row, number, reader.read(row), wanted[number])
    content = {
        "schema": _SCHEMA,
        "recorded": str(other.path),
        "problem": problem,
        "control_period_s": period_s,
        "pacing": run.manifest["pacing"],
        "episodes": [each.as_json() for each in episodes],
    }
    write_json(run.path / DEVIATIONS, to_json_types(content))
    lines = [f"episode {number}: {line}" for number, each in enumerate(episodes, start=1) for line in each.lines()]
    return [*([f"the recorded run is not sound: {problem}"] if problem else []), *lines]


def _other_run(run: Run, other: Run) -> str:
    """Return that the rows of `other` are not those that `run` played, or ""."""
    policy, head = run.manifest.get("policy"), other.chain.head
    is_other = isinstance(policy, Mapping) and policy.get("format") == "run" and policy.get("sha256") != head
    return "its rows are not those that were played" if is_other else ""


class _Values:
    """Reads the commands and small fields of a row, by the names of their components."""

    def __init__(self, run: Run) -> None:
        self.contract = contract_of_manifest(run.manifest)
        self._joints = ActionLayout(self.contract).joints
        self._decoder = RowDecoder(self.contract, run.array)
        self._fields: list[tuple[str, str, list[str]]] = []
        for sensor, spec in self.contract.sensors.items():
            for layout in field_layouts(sensor, spec):
                size = int(np.prod(layout.shape))
                if size <= _LARGEST and layout.dtype.kind == "f":
                    known = spec.fields[layout.field].joints or tuple(map(str, range(size)))
                    self._fields.append((sensor, layout.field, [f"{layout.key} {name}" for name in known]))

    def read(self, row: TransitionRow) -> dict[str, float]:
        """Return values by name, without measured ones where the world was lost."""
        published = np.array(row["inner"]["report"]["applied_si"], dtype=np.float64).tolist()
        values = {_COMMAND + joint: value for joint, value in zip(self._joints, published, strict=False)}
        try:
            samples = self._decoder.snapshot(row).samples
        except BackendLostError:
            return values
        for sensor, field, names in self._fields:
            if (sample := samples.get(sensor)) is not None:
                values |= zip(names, np.ravel(sample.values[field]).tolist(), strict=True)
        return values


class _PlayedEpisode:
    """Differences of one episode by column, a command or a component that both runs have."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._commands = CommandDeviations()
        self._rows: list[int] = []  # of the recorded run
        self.end_reason = ""  # of the last row
        self._table: dict[str, list[tuple[float, float]]] = {}

    def add(self, row: TransitionRow, number: int, values: Mapping[str, float], recorded: Mapping[str, float]) -> None:
        """Add a step that played the recorded row of this number."""
        index, shared = len(self._rows), [name for name in values if name in recorded]
        self._rows.append(number)
        codes = [finding["code"] for finding in row["inner"]["findings"]]
        command, other = (
            np.array([each[name] for name in shared if name.startswith(_COMMAND)]) for each in (values, recorded)
        )
        self._commands.add(index, command, other, codes)
        for name in shared:
            known = self._table.setdefault(name, [])
            known += [(np.nan, np.nan)] * (index - len(known))
            known.append((values[name], recorded[name]))

    def columns(self) -> dict[str, dict[str, Any]]:
        return {name: self._describe(name, *np.array(pairs).T) for name, pairs in self._table.items()}

    def _describe(self, name: str, values: FloatArray, recorded: FloatArray) -> dict[str, Any]:
        difference, is_command = values - recorded, name.startswith(_COMMAND)
        size = np.abs(np.where(np.isfinite(difference), difference, 0.0))
        finite = recorded[np.isfinite(recorded)]
        limit = 0.0 if is_command else max(_DIVERGED * float(np.ptp(finite)) if finite.size else 0.0, _LEAST)
        times_s = self._period_s * (np.arange(len(size)) + (not is_command))  # a reading is of the end of its step
        beyond = times_s[size > limit].tolist()
        return {
            "rms": float(np.sqrt(np.mean(np.square(size)))),
            "worst": float(size.max()),
            "worst_s": float(times_s[size.argmax()]),
            "diverged_s": beyond[0] if beyond else None,
            "difference": difference.tolist(),
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": len(self._rows),
            "rows": self._rows,
            "end_reason": self.end_reason,
            "changed": self._commands.changed,
            "columns": self.columns(),
        }

    def lines(self) -> Iterator[str]:
        """Yield the result in text with the commands and the columns that differ."""
        yield self._commands.describe(self._period_s)
        for name, column in self.columns().items():
            if column["worst"]:
                when = f"at {column['worst_s']:.3f} s"
                diverged = "" if column["diverged_s"] is None else f", diverged at {column['diverged_s']:.3f} s"
                yield f"{name}: RMS {column['rms']:.4g}, worst {column['worst']:.4g} {when}{diverged}"
