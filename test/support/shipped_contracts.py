"""Shipped contracts with changes, resolved first, since their own text lacks the robot file."""

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from strategies import Document, changed

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.contract.contract_loader import dump_contract

NO_CHANGES: Mapping[str, object] = {}


def resolved_document(name: str | Contract, changes: Mapping[str, object] = NO_CHANGES) -> Document:
    """Return a contract merged over its robot file, with new values by dotted path, or ABSENT."""
    text = _resolved_text(name) if isinstance(name, str) else dump_contract(name)
    document: Document = json.loads(text)
    for path, value in changes.items():
        document = changed(path, value, document)
    return document


@functools.cache
def _resolved_text(name: str) -> str:
    return dump_contract(load_contract(name))


def changed_text(name: str | Contract, changes: Mapping[str, object] = NO_CHANGES) -> str:
    """Return the text of a contract file, like `resolved_document`."""
    return json.dumps(resolved_document(name, changes))


def changed_contract(name: str | Contract, changes: Mapping[str, object]) -> Contract:
    """Return a contract, like `resolved_document`, whose named files are relative to the shipped one."""
    return parse_contract(changed_text(name, changes), source=load_contract(name).source)


def with_slow_emulator(contract: Contract) -> Contract:
    """Return the contract with an emulator of two ticks, of half the cost, in a control period."""
    slow = {**contract.backends["mujoco_ros"], "emulator": {"tick_s": contract.control_period_s / 2}}
    return replace(contract, backends={**contract.backends, "mujoco_ros": slow})


def unhurried(contract: Contract) -> Contract:
    """Return the contract with readings and actions that a stall of the machine may delay."""
    safety = contract.safety
    action = replace(safety.action, max_age_steps=1000)
    watchdog = replace(safety.watchdog, hold_steps=1000, stop_steps=2000)
    sensors = {name: replace(sensor, max_age_s=60.0) for name, sensor in contract.sensors.items()}
    keys: dict[str, Any] = {"action": action, "watchdog": watchdog}
    return replace(contract, sensors=sensors, safety=replace(safety, **keys))


def arm_of(actuator: Mapping[str, object], **changes: object) -> Contract:
    """Return the shipped arm with these keys of its actuator, and changes at its top level."""
    return changed_contract("arm_reach", {**changes, **{f"actuators.arm.{key}": actuator[key] for key in actuator}})


def arm_in_degrees(**changes: object) -> Contract:
    """Return the shipped arm with a driver that takes and reports degrees, in the other direction."""
    names = load_contract("arm_reach").actuators["arm"].joints
    places = [f"actuators.arm.joints.{name}.driver" for name in names]
    places += [f"sensors.joints.fields.{field}.driver" for field in ("position", "velocity")]
    return changed_contract("arm_reach", {**{place: {"unit": "deg", "sign": -1} for place in places}, **changes})


def with_hidden_velocities() -> Contract:
    """Return a contract whose joint velocities, which vary in the fake world too, are for the evaluator only."""
    contract = load_contract("arm_reach")
    joints = contract.sensors["joints"]
    seen = replace(joints, fields={"position": joints.fields["position"]})
    velocity = {"velocity": joints.fields["velocity"]}
    hidden = replace(joints, topic="truth", visibility="evaluator", mask=False, fields=velocity)
    return replace(contract, sensors={**contract.sensors, "joints": seen, "truth": hidden})


def rescaled(env):
    """Rescale the observations of `env`, a vector or not, from -1 to 1 where their bounds are finite."""
    kind = gymnasium.wrappers.vector if isinstance(env, gymnasium.vector.VectorEnv) else gymnasium.wrappers
    box = getattr(env, "single_observation_space", env.observation_space)
    ends = ((box.low, -1.0), (box.high, 1.0)) if isinstance(box, gymnasium.spaces.Box) else ((-1.0, -1.0), (1.0, 1.0))
    return kind.RescaleObservation(env, *(np.where(np.isinf(end), end, unit) for end, unit in ends))
