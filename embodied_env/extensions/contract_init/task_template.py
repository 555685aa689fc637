"""Write a first task for a new contract as a function in a file of its own, to be edited."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from embodied_env.contract import Contract
from embodied_env.contract.spaces import field_layouts

_TEMPLATE = '''"""The task of {contract}: the reward of a step, and whether the step succeeds.

`task.type` of the contract names this function; its keyword-only parameters are further keys of `task:`.
"""

from embodied_env.contract import FloatArray
from embodied_env.tasks import Snapshot, is_fresh


def {name}(
    previous: Snapshot,  # the readings before the step
    current: Snapshot,  # the readings after it
    applied: FloatArray,  # the action that the safety gate let through, one value per joint
    *,
    sensor: str = "{sensor}",
    target: float = 0.5,
    tolerance: float = 0.05,
) -> tuple[float, bool]:
    """Return minus the distance from the target, and whether a new reading is within the tolerance."""
    distance = abs(float(current.samples[sensor].values["{field}"].flat[0]) - target)
    return -distance, distance <= tolerance and is_fresh(current, sensor)
'''


def function_name(file: Path) -> str:
    """Return the name of the function in the task file `file`.

    It is the file's own name as an identifier.
    """
    name = re.sub(r"\W", "_", file.stem).lstrip("_0123456789") or "task"
    return name + "_" * keyword.iskeyword(name)


def task_template(contract: Contract, name: str) -> str:
    """Return the source of a task `name` that reads the first position or value."""
    layouts = [layout for key, sensor in contract.sensors.items() for layout in field_layouts(key, sensor)]
    read = min(layouts, key=lambda layout: layout.field != "position")
    return _TEMPLATE.format(contract=contract.name, name=name, sensor=read.sensor, field=read.field)
