"""Rules of latency and samples, whose stages are differences of stamps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from embodied_env.core.code_types import Quality
from embodied_env.core.info_schema import host_keys
from embodied_env.record.row_schema import Violation, check_equal, make_violation, wrong_value
from embodied_env.record.row_types import ReturnedRow, StepRecord, StepRow, TransitionRow
from embodied_env.timing.clock import NS_PER_S

USABLE = (int(Quality.OK), int(Quality.OUT_OF_RANGE))
"""Qualities of a reading that is used.

With any other the last usable one is held.
"""

_PARTS = ("handoff", "inference", "gate", "publish")

_SENSOR_STAGES = {  # last and first stamp of a sensor by stage
    "hold_s": ("", "arrival_ns"),  # ends with the observation
    "driver_s": ("source_ns", "header_ns"),
    "transport_s": ("received_ns", "source_ns"),
    "queue_s": ("arrival_system_ns", "received_ns"),
}


def to_ns(seconds: float) -> int:
    """Return a recorded duration in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def is_free_running(info: StepRecord) -> bool:
    """Return whether the world moves by itself, so that info has the jitter of the period."""
    return "jitter_s" in info["latency"]


def has_host_timing(info: Mapping[str, Any]) -> bool:
    """Return whether the info of a step has durations of the host, which a row always has."""
    latency = info.get("latency")
    return "latency_ms" in info or (isinstance(latency, dict) and not host_keys().isdisjoint(latency))


def _check_stamp_order(row: TransitionRow) -> Iterator[Violation]:
    stamps: Mapping[str, Any] = row["inner"]["stamps_ns"]
    order = ["previous_observed", "previous_returned", "marked", "entered", "gated", "published", "observed"]
    chain = [name for name in order if name in stamps]
    for earlier, later in [*itertools.pairwise(chain), ("previous_entered", "previous_returned")]:
        if stamps[earlier] > stamps[later]:
            expected = f"{' <= '.join(chain)}; {earlier} is {stamps[earlier]}"
            yield wrong_value("stamps.order", f"inner.stamps_ns.{later}", stamps[later], expected)


def _check_stages(row: TransitionRow) -> Iterator[Violation]:
    info: Mapping[str, Any] = row["info"]
    ns = row["inner"]["stamps_ns"]
    durations_ns = {
        "handoff": ns["previous_returned"] - ns["previous_observed"],
        "inference": ns["entered"] - ns["previous_returned"],
        "policy": ns.get("marked", ns["entered"]) - ns["previous_returned"],
        "gate": ns["gated"] - ns["entered"],
        "publish": ns["published"] - ns["gated"],
        "obs_to_command": ns["published"] - ns["previous_observed"],
        "world": ns["observed"] - ns["published"],
        "period": ns["entered"] - ns["previous_entered"],
    }
    for stage, duration_ns in durations_ns.items():
        if (recorded := info["latency"][f"{stage}_s"]) != duration_ns / NS_PER_S:
            expected = f"the difference of its stamps, {duration_ns} ns"
            yield wrong_value("latency.stage", f"info.latency.{stage}_s", recorded, expected)
    if (render_s := info["latency"].get("render_s")) is not None and render_s > info["latency"]["world_s"]:
        yield wrong_value("latency.stage", "info.latency.render_s", render_s, "at most world_s, of which it is a part")
    if info["latency_ms"] != durations_ns["obs_to_command"] / 1e6:
        expected = f"the difference of its stamps, {durations_ns['obs_to_command']} ns"
        yield wrong_value("latency.total", "info.latency_ms", info["latency_ms"], expected)


def _check_total(row: StepRow) -> Iterator[Violation]:
    latency: Mapping[str, Any] = row["info"]["latency"]
    where = "info.latency.obs_to_command_s"
    if not has_host_timing(row["info"]):
        return
    total_ns = to_ns(latency["obs_to_command_s"])
    sum_ns = sum(to_ns(latency[f"{part}_s"]) for part in _PARTS)
    if sum_ns != total_ns:
        yield wrong_value("latency.total", where, latency["obs_to_command_s"], f"{' + '.join(_PARTS)}, {sum_ns} ns")
    yield from check_equal("latency.total", "info.latency_ms", row["info"]["latency_ms"], total_ns / 1e6, f", {where}")


def _check_sensor_stages(row: TransitionRow) -> Iterator[Violation]:
    observed_ns = row["inner"]["stamps_ns"]["observed"]
    latency: Mapping[str, Any] = row["info"]["latency"]
    samples: Mapping[str, Any] = row["inner"]["sensors"]
    for stage, (last, first) in _SENSOR_STAGES.items():
        for sensor, value in latency.get(stage, {}).items():
            sample = samples.get(sensor)
            if sample is None or value is None:
                continue
            later, earlier = sample[last] if last else observed_ns, sample[first]
            if later is None or earlier is None:
                expected = "null, because a stamp is missing"
            elif value != (later - earlier) / NS_PER_S:
                expected = f"the difference of its stamps, {later - earlier} ns"
            else:
                continue
            yield wrong_value("latency.sensor", f"info.latency.{stage}.{sensor}", value, expected)


def _check_stage_qualities(row: StepRow) -> Iterator[Violation]:
    """Check that each stage has a quality, and that OK ones are present and not negative."""
    latency = row["info"]["latency"]
    for stage, quality in latency["quality"].items():
        codes = quality if isinstance(quality, dict) else {"": quality}
        values = latency.get(stage) if isinstance(quality, dict) else {"": latency.get(stage)}
        if not isinstance(values, dict) or values.keys() != codes.keys():
            where = f"info.latency.quality.{stage}"
            text = f"{where} has the sensors {sorted(codes)} (expected those of info.latency.{stage}: {values})"
            yield make_violation("latency.quality", where, quality, text)
            continue
        for sensor, code in codes.items():
            value, where = values[sensor], f"info.latency.{stage}.{sensor}".rstrip(".")
            if code == Quality.OK and (value is None or (value < 0 and stage != "jitter_s")):
                yield wrong_value("latency.quality", where, value, "a duration >= 0, because its quality is OK")


def _check_sensors(row: TransitionRow) -> Iterator[Violation]:
    """Check the sensors in info against their samples, and that all ages refer to one instant."""
    samples, sensors = row["inner"]["sensors"], row["info"]["sensors"]
    for name, sensor in sensors.items():
        where = f"info.sensors.{name}"
        if name not in samples:
            text = f"{where} is not in inner.sensors (expected one of: {', '.join(samples)})"
            yield make_violation("sensor.account", where, sensor, text)
        elif (quality := Quality[samples[name]["quality"]]) != sensor["quality"]:
            expected = f"{int(quality)}, as inner.sensors has {quality.name}"
            yield wrong_value("sensor.account", f"{where}.quality", sensor["quality"], expected)
    instants = {
        name: (sensor["stamp_ns"] + to_ns(sensor["age_s"]), samples[name]["stamp_ns"] - sensor["stamp_ns"])
        for name, sensor in sensors.items()
        if name in samples
    }
    for first, name in itertools.pairwise(instants):
        if instants[name] != instants[first]:
            where, (now_ns, origin_ns) = f"info.sensors.{name}", instants[name]
            text = (
                f"{where}: stamp and age refer to {now_ns} ns since {origin_ns} ns "
                f"(expected {instants[first][0]} ns since {instants[first][1]} ns, as for {first})"
            )
            yield make_violation("sensor.account", where, sensors[name]["age_s"], text)
            return


ACCOUNT_LATENCY_RULES: tuple[Callable[[TransitionRow], Iterator[Violation]], ...] = (  # with an account
    _check_stamp_order,
    _check_stages,
    _check_sensor_stages,
    _check_stage_qualities,
    _check_sensors,
)

INFO_LATENCY_RULES: tuple[Callable[[ReturnedRow], Iterator[Violation]], ...] = (_check_stage_qualities, _check_total)
"""For a row with only the values that `step` returned."""
