"""The rules of readings: what is called good is fresh, and what is told of a sensor is what was noted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.record.audit.violation import Violation, make_violation
from embodied_env.record.rows import Row

GOOD = (int(Quality.OK), int(Quality.OUT_OF_RANGE))
"""Qualities of a reading that is used; any other stands for one that is held."""


def ns_of(seconds: float) -> int:
    """Return whole nanoseconds of a duration that was told in seconds."""
    return round(seconds * NS_PER_S)


def moves_by_itself(info: Mapping[str, Any]) -> bool:
    """Say whether the world of a step does not wait for the agent: only then the jitter of a period is known."""
    return "jitter_s" in info["latency"]


def readings(row: Row, contract: Contract) -> Iterator[Violation]:
    """A reading whose quality is OK is no older than its sensor allows, and not of the future."""
    info = row["info"]
    is_free = "latency" not in info or moves_by_itself(info)  # of a reset it is not said
    ahead_ns = round(contract.safety.observation.future_tolerance_s * NS_PER_S) if is_free else 0
    for name, sensor in info["sensors"].items():
        if name not in contract.sensors or sensor["quality"] != Quality.OK:
            continue
        where, age_ns = f"info.sensors.{name}.age_s", ns_of(sensor["age_s"])
        most_s = contract.sensors[name].max_age_s
        if age_ns > most_s * NS_PER_S:
            text = f"{where} is {sensor['age_s']}, and its quality is OK; allowed: max_age_s {most_s}"
            yield make_violation("sensor.stale", where, sensor["age_s"], text)
        elif age_ns < -ahead_ns:
            text = f"{where} is {sensor['age_s']}, and its quality is OK; allowed: a stamp that is not of the future"
            yield make_violation("sensor.future", where, sensor["age_s"], text)


def mask(row: Row, contract: Contract) -> Iterator[Violation]:
    """The mask of a sensor says whether its reading is of now or held."""
    info = row["info"]
    observation = row["inner"]["observation"] if "inner" in row else row["observation"]
    if not isinstance(observation, dict):
        return
    for name, sensor in contract.sensors.items():
        key = f"{name}_valid"
        if not sensor.mask or key not in observation or name not in info["sensors"]:
            continue
        quality = info["sensors"][name]["quality"]
        if observation[key] in ([0], [1]) and observation[key] != [int(quality in GOOD)]:
            text = f"observation.{key} is {observation[key]}, but the quality of {name} is {Quality(quality).name}"
            yield make_violation("sensor.mask", f"observation.{key}", observation[key], text)


def accounts(row: Row) -> Iterator[Violation]:
    """What info tells of sensors is what was noted of their samples, and all their ages are of one instant."""
    told, noted = row["info"]["sensors"], row["inner"]["sensors"]
    instants = {}
    for name, sensor in told.items():
        if name not in noted:
            text = f"info.sensors.{name} is there, but inner.sensors has {', '.join(noted) or 'none'}"
            yield make_violation("sensor.account", f"info.sensors.{name}", sensor, text)
            continue
        sample = noted[name]
        instants[name] = (sensor["stamp_ns"] + ns_of(sensor["age_s"]), sample["stamp_ns"] - sensor["stamp_ns"])
        if Quality[sample["quality"]] != sensor["quality"]:
            where = f"info.sensors.{name}.quality"
            text = f"{where} is {sensor['quality']}, but inner.sensors makes it {sample['quality']}"
            yield make_violation("sensor.account", where, sensor["quality"], text)
    first = next(iter(instants.values()), None)
    for name, instant in instants.items():
        if first is not None and instant != first:
            where = f"info.sensors.{name}"
            text = (
                f"{where}: its age and stamp are of {instant[0]} ns since {instant[1]} ns, "
                f"but those of {next(iter(instants))} of {first[0]} ns since {first[1]} ns"
            )
            yield make_violation("sensor.account", where, told[name]["age_s"], text)
            return
