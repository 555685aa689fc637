"""The rules of latency: each stage is the difference of its stamps, and what was not measured is not called so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.record.audit.violation import Violation, make_violation
from embodied_env.record.rows import Row

_PARTS = ("handoff", "inference", "gate", "publish")

_SENSOR_STAGES = {
    "driver_s": ("source_ns", "header_ns"),
    "transport_s": ("received_ns", "source_ns"),
    "queue_s": ("arrival_system_ns", "received_ns"),
}
"""Stage -> the stamps of a sensor that it lies between, the later first."""


def stamps(row: Row) -> Iterator[Violation]:
    """The stamps of a step lie in the order of the step."""
    stamps = row["inner"]["stamps_ns"]
    order = ["previous_observed", "previous_returned", "marked", "entered", "gated", "published", "observed"]
    chain = [name for name in order if name in stamps]
    pairs = [*itertools.pairwise(chain), ("previous_entered", "previous_returned")]
    for earlier, later in pairs:
        if stamps[earlier] > stamps[later]:
            text = f"inner.stamps_ns.{later} is {stamps[later]}, before inner.stamps_ns.{earlier} {stamps[earlier]}; "
            yield make_violation(
                "stamps.order", f"inner.stamps_ns.{later}", stamps[later], f"{text}allowed: {' <= '.join(chain)}"
            )


def stages(row: Row) -> Iterator[Violation]:
    """Each stage in info is the difference of its stamps, to the nanosecond."""
    latency = row["info"]["latency"]
    for stage, ns in _durations_ns(row["inner"]["stamps_ns"]).items():
        if latency[f"{stage}_s"] != ns / NS_PER_S:
            where, said = f"info.latency.{stage}_s", latency[f"{stage}_s"]
            yield make_violation("latency.stage", where, said, f"{where} is {said}, but its stamps lie {ns} ns apart")


def _durations_ns(ns: Mapping[str, int]) -> dict[str, int]:
    """Return the stages as differences of stamps (the definitions are the ledger's)."""
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


def total(row: Row) -> Iterator[Violation]:
    """latency_ms says what the stamps say."""
    expected_ms = _durations_ns(row["inner"]["stamps_ns"])["obs_to_command"] / 1e6
    if (said := row["info"]["latency_ms"]) != expected_ms:
        text = f"info.latency_ms is {said}, but its stamps lie {expected_ms} ms apart"
        yield make_violation("latency.total", "info.latency_ms", said, text)


def total_of_info(row: Row) -> Iterator[Violation]:
    """obs_to_command is the sum of its parts, exactly in nanoseconds, and latency_ms says the same."""
    latency = row["info"]["latency"]
    total_ns = round(latency["obs_to_command_s"] * NS_PER_S)
    sum_ns = sum(round(latency[f"{part}_s"] * NS_PER_S) for part in _PARTS)
    if sum_ns != total_ns:
        where, said = "info.latency.obs_to_command_s", latency["obs_to_command_s"]
        text = f"{where} is {total_ns} ns, but {' + '.join(_PARTS)} is {sum_ns} ns"
        yield make_violation("latency.total", where, said, text)
    if (said := row["info"]["latency_ms"]) != total_ns / 1e6:
        text = f"info.latency_ms is {said}, but info.latency.obs_to_command_s is {total_ns} ns"
        yield make_violation("latency.total", "info.latency_ms", said, text)


def sensor_stages(row: Row) -> Iterator[Violation]:
    """Each stage of a sensor is the difference of its stamps; hold ends with the observation."""
    latency, sensors = row["info"]["latency"], row["inner"]["sensors"]
    observed_ns = row["inner"]["stamps_ns"]["observed"]
    for stage, sensor, value in _of_sensors(latency, ("hold_s", *_SENSOR_STAGES)):
        if sensor not in sensors or value is None:
            continue
        sample, where = sensors[sensor], f"info.latency.{stage}.{sensor}"
        later, earlier = (sample[name] for name in _SENSOR_STAGES.get(stage, ("arrival_ns", "arrival_ns")))
        later = observed_ns if stage == "hold_s" else later
        if later is None or earlier is None:
            text = f"{where} is {value}, but a stamp that it needs is not there"
            yield make_violation("latency.sensor", where, value, text)
        elif value != (later - earlier) / NS_PER_S:
            text = f"{where} is {value}, but its stamps lie {later - earlier} ns apart"
            yield make_violation("latency.sensor", where, value, text)


def known_stages(row: Row) -> Iterator[Violation]:
    """What is called measured is there, and is not negative; a stage that is there has a quality."""
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
                text = f"{where} is {value}, but its quality is OK; allowed: a measured duration"
                yield make_violation("latency.quality", where, value, text)


def _of_sensors(latency: Mapping[str, Any], stages: tuple[str, ...]) -> Iterator[tuple[str, str, float | None]]:
    for stage in stages:
        for sensor, value in latency.get(stage, {}).items():
            yield stage, sensor, value
