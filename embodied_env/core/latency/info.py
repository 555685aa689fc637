"""``info["latency"]``: the stages of a step in seconds, each with its quality.

::

    acquired ─driver─▶ published ─transport─▶ received ─queue─▶ taken ─hold─▶ frozen      sensor path
    frozen ─handoff─▶ returned ─inference─▶ entered ─gate─▶ judged ─publish─▶ sent        obs_to_command: their sum
    acquired ───────────────────────── data age ────────────────────────────▶ sent ─actuation─▶ acts
    acquired ───────────────────────── end to end, of the primary sensor ─────────────────────▶ acts

A duration is the difference of two stamps of one clock. One that cannot be computed is NaN, and its quality is the
reason; a negative one is kept and marked. Definitions: docs/concepts/clocks.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.core.latency.ledger import STAGES, Ledger, StepEvent
from embodied_env.core.pacing import DeadlineCounts
from embodied_env.core.types import ActuationEvidence, ClockStatus, Sample, Snapshot

Stages = dict[str, object]
Stage = tuple[float, Quality]

ACTUATION_METHODS: Mapping[str, int] = {"": 0, "echo": 1, "controller": 2, "declared": 3}
"""`embodied_env.core.types.ActuationEvidence.method` -> its number in ``actuation_method``."""

HOST_STAGES = (*STAGES, "hold_s", "transport_s", "queue_s")
"""The stages of a lockstep world that are durations of the host; the others are simulated time."""

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)
_COMMANDS_KEPT = 64  # evidence of older commands is ignored
_MAX_RTF_ERROR = 0.01  # largest |real-time factor - 1| at which world time and steady time are added
_UNKNOWN: Stage = (math.nan, Quality.UNKNOWN)


class CommandsInFlight:
    """Send times of the most recent commands, by sequence number."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque(maxlen=_COMMANDS_KEPT)

    def begin(self) -> None:
        """Forget the commands of the last episode."""
        self._sent.clear()

    def record_sent(self, seq: int, published_ns: int) -> None:
        """Record that command `seq` was published at `published_ns` (steady clock)."""
        self._sent.append((seq, published_ns))

    def find(self, seq: int) -> tuple[int, int] | None:
        """Return when the command was published and how many were published since; None: unknown or too old."""
        for behind, (number, published_ns) in enumerate(reversed(self._sent)):
            if number == seq:
                return published_ns, behind
        return None


@dataclass
class _StageTable:
    """Stages and their quality codes, under the same keys."""

    values: Stages = field(default_factory=dict)
    quality: Stages = field(default_factory=dict)

    def put(self, name: str, stage: Stage) -> None:
        self.values[name], self.quality[name] = stage[0], int(stage[1])

    def put_each(self, name: str, stages: Mapping[str, Stage]) -> None:
        values: dict[str, float] = {}
        qualities: dict[str, int] = {}
        self.values[name], self.quality[name] = values, qualities
        for sensor, (seconds, quality) in stages.items():
            values[sensor], qualities[sensor] = seconds, int(quality)


@dataclass(kw_only=True)
class LatencyInfoBuilder:
    """Builds ``info["latency"]`` for one stepper. The world's capabilities determine its keys."""

    sensors: tuple[str, ...]
    primary: str | None  # the sensor that ``end_to_end_s`` starts from; None: no such stage
    period_ns: int
    transport: bool  # middleware stamps are comparable with our clock
    moves_by_itself: bool  # world time is wall time, so that durations of both clocks may be added
    pacer: DeadlineCounts | None  # of a paced world
    actuation: bool  # the world may report when a command acts
    injected: str = ""  # delays injected into the world: "whole", or "sensors" if the actuation delay is unknown
    _clock: ClockStatus = field(default=ClockStatus(mode="sim"), init=False)

    def build(
        self,
        ledger: Ledger,
        before: Snapshot,
        now: Snapshot,
        commands: CommandsInFlight,
        *,
        host_timing: bool = True,
    ) -> Stages:
        """Return the stages of the step from `before`, the settled snapshot of its observation, to `now`."""
        table = _StageTable(ledger.durations_s(), ledger.qualities()) if host_timing else _StageTable()
        fresh = {name: now.samples[name] for name in self.sensors}
        self._put_ages(table, now, fresh, ledger.at_ns(StepEvent.OBSERVED) if host_timing else None)
        if self.transport and host_timing:
            table.put_each("transport_s", {name: _transport(sample) for name, sample in fresh.items()})
            table.put_each("queue_s", {name: _queue(sample) for name, sample in fresh.items()})
        if self.moves_by_itself:
            table.values["clock"] = self._clock_info(now)
            data_ages = {name: self._data_age(before.samples[name], before, ledger) for name in self.sensors}
            table.put_each("data_age_s", data_ages)
            table.values["jitter_s"] = (ledger.period_ns - self.period_ns) / NS_PER_S
            table.quality["jitter_s"] = table.quality["period_s"]
            if self.transport:
                table.put_each("driver_s", {name: _driver(sample) for name, sample in fresh.items()})
                table.put_each(
                    "transport_excess_s", {name: _transport_excess(sample) for name, sample in fresh.items()}
                )
        if self.pacer is not None:
            table.put("overrun_s", (self.pacer.overrun_ns / NS_PER_S, Quality.OK))
            table.values["overruns"], table.values["missed_deadlines"] = self.pacer.overruns, self.pacer.missed
        if self.actuation:
            acted, behind, method = _find_actuation(now.actuation, commands)
            table.put("actuation_s", acted)
            table.values["actuation_behind"], table.values["actuation_method"] = behind, ACTUATION_METHODS[method]
            if self.primary is not None:
                age_s, age_quality = self._data_age(before.samples[self.primary], before, ledger)
                table.put("end_to_end_s", (age_s + acted[0], _worst(acted[1], age_quality)))
        if self.injected:
            injected = self._injected_stages(before, now)
            table.values["injected"], table.quality["injected"] = injected.values, injected.quality
        table.values["quality"] = table.quality
        return table.values

    def _put_ages(self, table: _StageTable, now: Snapshot, fresh: Mapping[str, Sample], frozen_ns: int | None) -> None:
        """Put the age of each reading, its time in the buffer until `frozen_ns`, and skew and age over all sensors."""
        now_ns = now.now_ns
        ages_s, age_qualities, holds_s, hold_qualities, worst = {}, {}, {}, {}, Quality.OK
        for name, sample in fresh.items():
            ages_s[name], quality = _age(sample, now_ns)
            age_qualities[name] = int(quality)
            if frozen_ns is not None:
                holds_s[name], hold_quality = _elapsed(frozen_ns - sample.arrival_ns, _held_quality(sample))
                hold_qualities[name] = int(hold_quality)
            worst = quality if worst is Quality.OK else worst
        table.values["capture_age_s"], table.quality["capture_age_s"] = ages_s, age_qualities
        if frozen_ns is not None:
            table.values["hold_s"], table.quality["hold_s"] = holds_s, hold_qualities
        if not fresh:
            table.put("obs_skew_s", _UNKNOWN)
            table.put("obs_age_max_s", _UNKNOWN)
            return
        stamps_ns = [sample.stamp_ns for sample in fresh.values()]
        first_ns = min(stamps_ns)
        of_stamps = Quality.OK if worst is Quality.OK else _worst(*map(_stamp_quality, fresh.values()))
        table.put("obs_skew_s", ((max(stamps_ns) - first_ns) / NS_PER_S, of_stamps))
        table.put("obs_age_max_s", ((now_ns - first_ns) / NS_PER_S, worst))

    def _injected_stages(self, before: Snapshot, now: Snapshot) -> _StageTable:
        """Return the injected delays of this step's command and of its readings, in world time, nothing measured."""
        known = Quality.UNKNOWN if now.injected is None else Quality.OK
        acts = known if self.injected == "whole" else Quality.UNKNOWN
        inference_ns, actuation_ns = math.nan, math.nan
        if now.injected is not None:
            inference_ns, actuation_ns = now.injected.inference_ns, now.injected.actuation_ns
        early = () if before.injected is None else before.injected.early
        ages_ns, qualities = {}, {}
        for name in self.sensors:
            sample = before.samples[name]
            ages_ns[name], quality = before.now_ns - sample.stamp_ns, _age(sample, before.now_ns)[1]
            qualities[name] = Quality.FIRST if quality is Quality.OK and name in early else quality
        table = _StageTable()
        table.put_each("age_s", {name: (ns / NS_PER_S, qualities[name]) for name, ns in ages_ns.items()})
        table.put("inference_s", (inference_ns / NS_PER_S, known))
        table.put("actuation_s", (actuation_ns / NS_PER_S, acts))
        data_ages = {
            name: ((ns + inference_ns) / NS_PER_S, _worst(known, qualities[name])) for name, ns in ages_ns.items()
        }
        table.put_each("data_age_s", data_ages)
        if self.primary is not None:
            total_ns = ages_ns[self.primary] + inference_ns + actuation_ns
            table.put("end_to_end_s", (total_ns / NS_PER_S, _worst(acts, qualities[self.primary])))
        return table

    def _data_age(self, sample: Sample, before: Snapshot, ledger: Ledger) -> Stage:
        """Return the time from acquisition to the command; it adds world time and steady time, so both must agree."""
        if abs(self._clock.rtf - 1.0) > _MAX_RTF_ERROR:
            return math.nan, Quality.UNSYNCED
        return _age(sample, before.now_ns + ledger.obs_to_command_ns)

    def _clock_info(self, snapshot: Snapshot) -> Stages:
        clock = self._clock = snapshot.clock or self._clock  # a lost world reports no clock
        return {
            "mode": clock.mode,
            "epoch": clock.epoch,
            "jumps": clock.jumps,
            "rtf": clock.rtf,
            "offset_error_s": clock.offset_error_ns / NS_PER_S,
            "rmw": clock.rmw,
        }


def without_host_timing(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of a step or a reset in a lockstep world without the durations of the host."""
    kept: dict[str, Any] = _without(info, ("latency_ms",))
    if isinstance(latency := kept.get("latency"), Mapping):
        kept["latency"] = _without({**latency, "quality": _without(latency.get("quality"), HOST_STAGES)}, HOST_STAGES)
    if isinstance(sensors := kept.get("sensors"), Mapping):
        kept["sensors"] = {name: _without(reading, ("arrival_age_s",)) for name, reading in sensors.items()}
    if "reset" in kept:
        kept["reset"] = _without(kept["reset"], ("duration_s",))
    return kept


def _without(values: Any, keys: Collection[str]) -> Any:  # noqa: ANN401 - a wrapper may have replaced it
    return {key: value for key, value in values.items() if key not in keys} if isinstance(values, Mapping) else values


def _find_actuation(evidence: ActuationEvidence | None, commands: CommandsInFlight) -> tuple[Stage, int, str]:
    """Return how long the command took to act, how many were sent since, and the method of the evidence."""
    found = None if evidence is None else commands.find(evidence.seq)
    if evidence is None or found is None:
        return _UNKNOWN, -1, ""
    published_ns, behind = found
    value = (evidence.acted_ns - published_ns) / NS_PER_S
    quality = Quality.NEGATIVE if value < 0 else Quality.OK
    return (value, Quality.DECLARED if evidence.method == "declared" else quality), behind, evidence.method


def _age(sample: Sample, now_ns: int) -> Stage:
    """Return the time from acquisition to `now_ns`, both on the world's clock."""
    return _elapsed(now_ns - sample.stamp_ns, _stamp_quality(sample))


def _elapsed(ns: int, quality: Quality) -> Stage:
    value = ns / NS_PER_S
    return value, Quality.NEGATIVE if quality is Quality.OK and value < 0 else quality


def _stamp_quality(sample: Sample) -> Quality:
    return Quality.LOST if sample.quality is Quality.LOST else sample.stamp_quality


def _held_quality(sample: Sample) -> Quality:
    """Return OK also for a held reading, whose age grows; the time at which a lost world was read is not known."""
    return Quality.LOST if sample.quality is Quality.LOST else Quality.OK


def _duration(ns: int, sample: Sample, quality: Quality = Quality.OK) -> Stage:
    """Return a duration with the quality of its stamps; else NEGATIVE, or the quality of a held reading."""
    value = ns / NS_PER_S
    if quality is not Quality.OK:
        return value, quality
    if value < 0:
        return value, Quality.NEGATIVE
    return value, Quality.OK if sample.quality in _GOOD else sample.quality


def _transport(sample: Sample) -> Stage:
    """Return the time from publication to receipt; across hosts only if their clocks are known to agree."""
    if sample.source_ns is None or sample.received_ns is None:
        return _UNKNOWN
    quality = sample.transport_quality
    is_excess_only = quality is Quality.UNSYNCED and sample.transport_excess_s is not None
    if is_excess_only or quality in (Quality.UNKNOWN, Quality.JUMP):
        return math.nan, quality
    return _duration(sample.received_ns - sample.source_ns, sample, quality)


def _queue(sample: Sample) -> Stage:
    """Return the time from receipt to taking, both on this host."""
    if sample.received_ns is None or sample.arrival_system_ns is None:
        return _UNKNOWN
    if sample.transport_quality is Quality.JUMP:
        return math.nan, Quality.JUMP
    return _duration(sample.arrival_system_ns - sample.received_ns, sample)


def _driver(sample: Sample) -> Stage:
    """Return the time from acquisition to publication, if one clock gave both stamps."""
    if sample.source_ns is None or sample.header_ns is None:
        return _UNKNOWN
    if sample.stamp_quality is not Quality.OK:
        return math.nan, sample.stamp_quality
    return _duration(sample.source_ns - sample.header_ns, sample)


def _transport_excess(sample: Sample) -> Stage:
    """Return the transport time above the recent minimum, which needs no common clock."""
    if sample.transport_excess_s is None:
        return _UNKNOWN
    return _duration(round(sample.transport_excess_s * NS_PER_S), sample)


def _worst(*qualities: Quality) -> Quality:
    """Return the first quality that is not OK, or OK."""
    ok = Quality.OK
    for quality in qualities:
        if quality is not ok:
            return quality
    return ok
