"""Charts of how a playback deviated from its run, from its ``playback.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.extensions.report.charts import Line, line_chart
from embodied_env.extensions.report.html_pages import mapping_of
from embodied_env.record.run import read_json

_FILE = "playback.json"
_MOST_EPISODES, _MOST_CHARTS = 5, 6  # that are drawn; charts of an episode


def draw_deviations(folder: Path) -> list[str]:
    """Return charts of the differences over time, first those that diverged first.

    There are none without the file, or for values that are not valid.
    """
    try:
        content = read_json(folder / _FILE)
    except ValueError:
        return []
    episodes, period_s = mapping_of(content).get("episodes"), _number(mapping_of(content).get("control_period_s"))
    if not isinstance(episodes, list) or not 0.0 < period_s < math.inf:
        return []
    charts = []
    for number, episode in enumerate(episodes[:_MOST_EPISODES], start=1):
        columns = {name: mapping_of(each) for name, each in mapping_of(episode, "columns").items()}
        differing = [name for name, each in columns.items() if _number(each.get("worst")) > 0.0]
        diverged_s = {name: np.nan_to_num(_number(columns[name].get("diverged_s")), nan=math.inf) for name in differing}
        for name in sorted(differing, key=lambda each: diverged_s[each])[:_MOST_CHARTS]:
            values = columns[name].get("difference")
            if isinstance(values, list) and values:
                y = np.array([_number(value) for value in values])
                line = Line("played less recorded", period_s * np.arange(len(y)), y, "s0")
                charts.append(line_chart(f"episode {number}: {name}", [line], x_title="time, s"))
    return charts


def _number(value: Any) -> float:  # noqa: ANN401 - JSON types
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else math.nan
