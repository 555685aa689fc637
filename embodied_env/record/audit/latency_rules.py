"""Rules of latency and samples: stages are differences of stamps, and info repeats the account of each sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.record.audit.violation import Violation, make_violation, wrong_value
from embodied_env.record.rows import Row

USABLE = (int(Quality.OK), int(Quality.OUT_OF_RANGE))
"""Qualities of a reading that is used; with any other the last usable one is held."""

_PARTS = ("handoff", "inference", "gate", "publish")

_SENSOR_STAGES = {
    "hold_s": ("", "arrival_ns"),  # ends with the observation
    "driver_s": ("source_ns", "header_ns"),
    "transport_s": ("received_ns", "source_ns"),
    "queue_s": ("arrival_system_ns", "received_ns"),
}
"""Stage -> its last and its first stamp of a sensor."""


def to_ns(seconds: float) -> int:
    """Return a recorded duration in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def is_free_running(info: Mapping[str, Any]) -> bool:
    """Return whether the world of a step moves by itself: only then info has the jitter of the period."""
    return "jitter_s" in info["latency"]


def check_stamp_order(row: Row) -> Iterator[Violation]:
    """Check that the stamps of a step are in the order of the step."""
    stamps = row["inner"]["stamps_ns"]
    order = ["previous_observed", "previous_returned", "marked", "entered", "gated", "published", "observed"]
    chain = [name for name in order if name in stamps]
    for earlier, later in [*itertools.pairwise(chain), ("previous_entered", "previous_returned")]:
        if stamps[earlier] > stamps[later]:
            where = f"inner.stamps_ns.{later}"
            text = f"{where} is {stamps[later]}, before inner.stamps_ns.{earlier} {stamps[earlier]}; "
            yield make_violation("stamps.order", where, stamps[later], f"{text}allowed: {' <= '.join(chain)}")


def check_stages(row: Row) -> Iterator[Violation]:
    """Check that each stage in info is the difference of its stamps, to the nanosecond."""
    latency = row["info"]["latency"]
    for stage, ns in _durations_ns(row["inner"]["stamps_ns"]).items():
        if (recorded := latency[f"{stage}_s"]) != ns / NS_PER_S:
            but = f"its stamps lie {ns} ns apart"
            yield wrong_value("latency.stage", f"info.latency.{stage}_s", recorded, but=but)


def _durations_ns(ns: Mapping[str, int]) -> dict[str, int]:
    """Return the stages as differences of stamps, as the ledger defines them."""
    return {
        "handoff": ns["previous_returned"] - ns["previous_observed"],
        "inference": ns["entered"] - ns["previous_returned"],
        "policy": ns.get("marked", ns["entered"]) - ns["previous_returned"],
        "gate": ns["gated"] - ns["entered"],
        "publish": ns["published"] - ns["gated"],
        "obs_to_command": ns["published"] - ns["previous_observed"],
        "world": ns["observed"] - ns["published"],
        "period": ns["entered"] - ns["previous_entered"],
    }


def check_total(row: Row) -> Iterator[Violation]:
    """Check latency_ms against the stamps."""
    expected_ms = _durations_ns(row["inner"]["stamps_ns"])["obs_to_command"] / 1e6
    if (recorded := row["info"]["latency_ms"]) != expected_ms:
        but = f"its stamps lie {expected_ms} ms apart"
        yield wrong_value("latency.total", "info.latency_ms", recorded, but=but)


def check_total_of_info(row: Row) -> Iterator[Violation]:
    """Check that obs_to_command is the sum of its parts in nanoseconds, and latency_ms equal to it."""
    latency, where = row["info"]["latency"], "info.latency.obs_to_command_s"
    total_ns = to_ns(latency["obs_to_command_s"])
    sum_ns = sum(to_ns(latency[f"{part}_s"]) for part in _PARTS)
    if sum_ns != total_ns:
        text = f"{where} is {total_ns} ns, but {' + '.join(_PARTS)} is {sum_ns} ns"
        yield make_violation("latency.total", where, latency["obs_to_command_s"], text)
    if (recorded := row["info"]["latency_ms"]) != total_ns / 1e6:
        yield wrong_value("latency.total", "info.latency_ms", recorded, but=f"{where} is {total_ns} ns")


def check_sensor_stages(row: Row) -> Iterator[Violation]:
    """Check that each stage of a sensor is the difference of its stamps."""
    observed_ns = row["inner"]["stamps_ns"]["observed"]
    for stage, (last, first) in _SENSOR_STAGES.items():
        for sensor, value in row["info"]["latency"].get(stage, {}).items():
            sample = row["inner"]["sensors"].get(sensor)
            if sample is None or value is None:
                continue
            later, earlier = sample[last] if last else observed_ns, sample[first]
            if later is None or earlier is None:
                but = "a stamp that it needs is not there"
            elif value != (later - earlier) / NS_PER_S:
                but = f"its stamps lie {later - earlier} ns apart"
            else:
                continue
            yield wrong_value("latency.sensor", f"info.latency.{stage}.{sensor}", value, but=but)


def check_known_stages(row: Row) -> Iterator[Violation]:
    """Check that a stage of quality OK is present and not negative, and that each stage has a quality."""
    latency = row["info"]["latency"]
    for stage, quality in latency["quality"].items():
        codes = quality if isinstance(quality, dict) else {"": quality}
        values = latency.get(stage) if isinstance(quality, dict) else {"": latency.get(stage)}
        if not isinstance(values, dict) or values.keys() != codes.keys():
            where = f"info.latency.quality.{stage}"
            text = f"{where} is of {sorted(codes)}, but info.latency.{stage} is {values}"
            yield make_violation("latency.quality", where, quality, text)
            continue
        for sensor, code in codes.items():
            value, where = values[sensor], f"info.latency.{stage}.{sensor}".rstrip(".")
            if code == Quality.OK and (value is None or (value < 0 and stage != "jitter_s")):
                but = "its quality is OK; allowed: a measured duration"
                yield wrong_value("latency.quality", where, value, but=but)


def check_sensor_account(row: Row) -> Iterator[Violation]:
    """Check the sensors in info against their samples; all ages must refer to one instant."""
    samples = row["inner"]["sensors"]
    first: tuple[str, int, int] | None = None
    for name, sensor in row["info"]["sensors"].items():
        where = f"info.sensors.{name}"
        if name not in samples:
            text = f"{where} is there, but inner.sensors has {', '.join(samples) or 'none'}"
            yield make_violation("sensor.account", where, sensor, text)
        elif Quality[samples[name]["quality"]] != sensor["quality"]:
            but = f"inner.sensors makes it {samples[name]['quality']}"
            yield wrong_value("sensor.account", f"{where}.quality", sensor["quality"], but=but)
    for name, sensor in row["info"]["sensors"].items():
        if name not in samples:
            continue
        now_ns, origin_ns = sensor["stamp_ns"] + to_ns(sensor["age_s"]), samples[name]["stamp_ns"] - sensor["stamp_ns"]
        first = first or (name, now_ns, origin_ns)
        if (now_ns, origin_ns) != first[1:]:
            text = (
                f"info.sensors.{name}: its age and stamp are of {now_ns} ns since {origin_ns} ns, "
                f"but those of {first[0]} of {first[1]} ns since {first[2]} ns"
            )
            yield make_violation("sensor.account", f"info.sensors.{name}", sensor["age_s"], text)
            return
