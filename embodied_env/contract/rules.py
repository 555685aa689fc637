"""The rules of a contract: each violation names its YAML path, the value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from embodied_env.contract.actuator_rules import check_actuators
from embodied_env.contract.checks import (
    check_bounds,
    check_magnitude,
    check_name,
    check_plain,
    check_positive,
    check_topics_differ,
    one_of,
    require,
)
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.model import Contract, ResetOption, TaskSpec
from embodied_env.contract.safety_rules import check_safety
from embodied_env.contract.sensor_rules import check_keys, check_sensors
from embodied_env.errors import ContractError

MAX_APPLIED_ACTIONS = 1000

_TASK = re.compile(r"([A-Za-z_][\w.]*|[^\0:]+\.py):[A-Za-z_]\w*")


def check(contract: Contract) -> None:
    """Check every rule of `contract`.

    Raises:
        ContractError: for the first rule that is broken.
    """
    try:
        _check_heading(contract)
        check_sensors(contract.sensors)
        check_keys(contract)
        check_safety(contract)
        check_actuators(contract)
        check_topics_differ(contract.sensors, contract.actuators)
        _check_reset_options(contract.reset_options)
        _check_task(contract.task)
        for name, profile in contract.backends.items():
            check_plain(f"backends.{name}", profile)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=contract.source) from None


def _check_heading(contract: Contract) -> None:
    check_name("name", contract.name)
    require(contract.version >= 1, "version", f"{contract.version} is not allowed; allowed: 1 or more")
    check_positive("control_period_s", contract.control_period_s, "seconds")
    check_magnitude("control_period_s", contract.control_period_s, least=1e-6, most=1e3)
    steps = contract.episode.horizon_steps
    require(steps >= 1, "episode.horizon_steps", f"{steps} is not allowed; allowed: 1 or more steps")
    kept = contract.applied_actions
    allowed = f"0 to {MAX_APPLIED_ACTIONS} actions"
    require(0 <= kept <= MAX_APPLIED_ACTIONS, "applied_actions", f"{kept} is not allowed; allowed: {allowed}")


def _check_reset_options(options: Mapping[str, ResetOption]) -> None:
    for name, option in options.items():
        path = f"reset_options.{name}"
        check_name(path, name)
        check_bounds(path, option.low, option.high, None)
        vector = isinstance(option.low, tuple)
        require(
            vector == (option.type == "vector") and vector == isinstance(option.high, tuple),
            path,
            f"type {option.type!r} does not fit low {option.low} and high {option.high}; "
            "allowed: lists for a vector, numbers for a scalar",
        )


def _check_task(task: TaskSpec) -> None:
    require(
        _TASK.fullmatch(task.type) is not None,
        "task.type",
        f"{task.type!r} is not a class; allowed: module:Class or FILE.py:Class, e.g. embodied_env.tasks.reach:Reach",
    )
    is_ours = task.type.startswith("embodied_env.")
    require(not is_ours or task.type in SHIPPED_TASKS, "task.type", one_of(task.type, SHIPPED_TASKS))
    for name, parameter in task.parameters.items():
        check_plain(f"task.{name}", parameter)
