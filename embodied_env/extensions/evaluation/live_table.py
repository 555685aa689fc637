"""Live display of rate, latency and gates of an evaluation on stderr.

A background thread draws it a few times per second, so that steps do not wait for it. It pauses while a robot is reset,
since the operator may be prompted then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import Quality
from embodied_env.core.terminal import ProgressLines, make_console
from embodied_env.record.rows import held_readings
from embodied_env.safety.action_parsing import NO_ACTION

Info = Mapping[str, Any]

_WINDOW = 200  # steps of rates and percentiles
_REFRESH_HZ = 4
_NAMES = {number: code for code, number in CODES.items() if code}
_OK = int(Quality.OK)
_SHOWN = (
    ("period_s", "period, ms: p50 / p95 / max"),
    ("obs_to_command_s", "observation to command, ms"),
    ("obs_age_max_s", "oldest reading, ms"),
    ("actuation_s", "command to effect, ms"),
    ("end_to_end_s", "end to end, ms"),
)


class LiveAccount:
    """Totals of the infos of a run, which one thread adds and another reads."""

    def __init__(self, contract: Contract, episodes: int) -> None:
        self._period_s = contract.control_period_s
        self._horizon = contract.episode.horizon_steps
        self._episodes = episodes
        self._lock = threading.Lock()
        self._stages: dict[str, deque[float]] = {}
        self._codes: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._missed = self._missed_before = 0
        self.is_paced = False
        self.steps = self._clipped = self._estops = 0
        self._at = (0, 0)  # episode, step
        self._world = ""
        self._now: list[str] = []  # the codes of the newest step
        self._ages_s: dict[str, float] = {}

    def add(self, info: Info) -> None:
        """Add the info of a step."""
        latency = info["latency"]
        with self._lock:
            self.steps += 1
            codes = [_NAMES[int(code)] for code in info["safety"]["code"] if code]
            self._clipped += bool(info["action_clipped"]) and NO_ACTION not in codes
            self._world = f"{info['backend']} ({info['world']})"
            self._at = int(info["episode_index"]) + 1, int(info["step_index"])
            for stage, _ in _SHOWN:
                if latency["quality"].get(stage) == _OK:
                    self._stages.setdefault(stage, deque(maxlen=_WINDOW)).append(latency[stage])
            self._codes.update(codes)
            self._held.update(f"{sensor} {quality.lower()}" for sensor, quality in held_readings(info))
            joints: dict[int, list[str]] = {}
            for joint, code in info["safety"]["joints"].items():
                joints.setdefault(int(code), []).append(joint)
            self._now = [" ".join((code, *joints.get(CODES[code], []))) for code in codes]
            self._estops += any("estop" in code for code in codes)
            ages_s, qualities = latency.get("capture_age_s", {}), latency["quality"].get("capture_age_s", {})
            self._ages_s = {sensor: ages_s[sensor] for sensor, found in qualities.items() if found == _OK}
            self.is_paced = "missed_deadlines" in latency
            self._missed = self._missed_before + int(latency.get("missed_deadlines", 0))
            if info["end_reason"]:
                self._ends[info["end_reason"]] += 1
                self._missed_before = self._missed

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and texts of the rows of the table."""
        with self._lock:
            stages = {stage: np.array(values) for stage, values in self._stages.items()}
            codes, ends = dict(self._codes.most_common()), dict(self._ends.most_common())
            (episode, step), steps, clipped, missed = self._at, self.steps, self._clipped, self._missed
            now, estops, ages_s = ", ".join(self._now) or "open", self._estops, self._ages_s
            held = dict(self._held.most_common())
        solved, ended = ends.get("success", 0), sum(ends.values())
        rows = [
            ("world", self._world),
            ("episode", f"{episode} of {self._episodes}, step {step} of {self._horizon}"),
            ("success so far", f"{solved} of {ended} ended" + (f" ({100 * solved / ended:.0f} %)" if ended else "")),
        ]
        if "period_s" in stages:
            rate_hz = 1.0 / max(float(stages["period_s"].mean()), 1e-9)
            nominal = f", nominal {1.0 / self._period_s:.2f} Hz" if self.is_paced else ""
            rows.append(("rate", f"{rate_hz:.2f} Hz{nominal}"))
        for stage, label in _SHOWN:
            if stage in stages:
                p50_s, p95_s = np.percentile(stages[stage], (50, 95)).tolist()
                rows.append((label, f"{1e3 * p50_s:.2f} / {1e3 * p95_s:.2f} / {1e3 * stages[stage].max():.2f}"))
        if self.is_paced:
            rows.append(("missed deadlines", f"{missed}"))
        rows.append(("clipped steps", f"{100 * clipped / steps:.1f} %" if steps else "n/a"))
        rows.append(("gate now", now))
        rows.append(("gates", _counted(codes)))
        rows.append(("steps under an e-stop", f"{estops}"))
        if held:
            rows.append(("steps with a held reading", _counted(held)))
        if ages_s:
            oldest = sorted(ages_s.items(), key=lambda age: -age[1])
            rows.append(("sensor ages, ms", ", ".join(f"{sensor} {1e3 * age_s:.1f}" for sensor, age_s in oldest)))
        rows.append(("end reasons", _counted(ends)))
        return rows


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


class LiveTable:
    """An episode observer that shows a progress bar and the rows of a `LiveAccount`.

    With an engine, whose steps it does not receive, it shows the bar alone. If stderr is not a terminal, it prints a
    line every 10 s, and the last state.
    """

    def __init__(
        self,
        contract: Contract,
        policies: str,
        episodes: int,
        total: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the display, which starts with the first step or the end of the first episode.

        `episodes` is the number of each policy, `total` that of all policies, and `clock` that of the lines.
        """
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._account, self._lines = LiveAccount(contract, episodes), ProgressLines(clock)
        self._title, self._ended, self._total = f"{contract.name} · {policies}", 0, total
        title = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._bar = Progress(title, BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        self._line = self._bar.add_task(self._title, total=total)
        console = make_console(stderr=True)
        self._live = Live(get_renderable=self._drawn, console=console, refresh_per_second=_REFRESH_HZ, transient=True)

    def __enter__(self) -> Self:
        """Return this display without drawing it, since the first reset may prompt the operator."""
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._account.steps:
            self._live.console.print(self._drawn())

    @property
    def is_drawing(self) -> bool:
        """Whether the display is being redrawn."""
        return self._live.is_started

    def resetting(self) -> None:
        """Pause while a robot is reset, since the operator may be prompted."""
        if self._account.is_paced:
            self._live.stop()

    def stepped(self, info: Info) -> None:
        """Add the info of a step."""
        self._account.add(info)
        if not self.is_drawing:
            self._live.start()
        self._lines.show(self._describe)

    def ended(self, count: int) -> None:
        """Show that `count` episodes have ended."""
        self._ended = count
        self._bar.update(self._line, completed=count)
        if not self.is_drawing:
            self._live.start()
        self._lines.show(self._describe)

    def _describe(self) -> str:
        rows = dict(self._account.rows()) if self._account.steps else {}
        known = [f"{name} {rows[name]}" for name in ("episode", "success so far") if name in rows]
        return "; ".join((f"{self._title}: {self._ended} of {self._total} episodes", *known))

    def _drawn(self) -> Any:  # noqa: ANN401 - what rich can draw
        from rich.console import Group
        from rich.table import Column, Table

        if not self._account.steps:
            return self._bar
        columns = Column(no_wrap=True, min_width=27), Column(no_wrap=True, overflow="ellipsis")
        table = Table.grid(*columns, padding=(0, 2))
        for name, text in self._account.rows():
            table.add_row(name, text)
        return Group(self._bar, table)
