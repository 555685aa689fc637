"""Build ``info["latency"]`` from the stages of a step in seconds, each with its quality.

::

    acquired ─driver─▶ published ─transport─▶ received ─queue─▶ taken ─hold─▶ frozen      sensor path
    frozen ─handoff─▶ returned ─inference─▶ entered ─gate─▶ judged ─publish─▶ sent        obs_to_command: their sum
    acquired ───────────────────────── data age ────────────────────────────▶ sent ─actuation─▶ acts
    acquired ───────────────────────── end to end, of the primary sensor ─────────────────────▶ acts

A duration is the difference of two stamps of one clock. One that cannot be computed is NaN, and its quality is the
reason. A negative one is kept and marked. The definitions are in docs/concepts/clocks.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embodied_env.core.code_types import Quality
from embodied_env.core.types import ActuationEvidence, ClockStatus, Sample, Snapshot
from embodied_env.timing.clock import NS_PER_S, DeadlineCounts
from embodied_env.timing.ledger import Ledger

if TYPE_CHECKING:
    from embodied_env.core.info_types import InjectedInfo, InjectedQuality, LatencyInfo, LatencyQuality

Stage = tuple[float, Quality]

ACTUATION_METHODS: Mapping[str, int] = {"": 0, "echo": 1, "controller": 2, "declared": 3}
"""`embodied_env.core.types.ActuationEvidence.method` -> its number in ``actuation_method``."""

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
        """Return when the command was published and how many since, or None if unknown or too old."""
        for behind, (number, published_ns) in enumerate(reversed(self._sent)):
            if number == seq:
                return published_ns, behind
        return None


@dataclass(kw_only=True)
class LatencyInfoBuilder:
    """Builds ``info["latency"]`` with keys that depend on the world's capabilities."""

    sensors: tuple[str, ...]
    primary: str | None  # the sensor that ``end_to_end_s`` starts from; None: no such stage
    period_ns: int
    transport: bool  # middleware stamps are comparable with our clock
    moves_by_itself: bool  # world time is wall time, so that durations of both clocks may be added
    pacer: DeadlineCounts | None  # pacer of a paced world
    commands: CommandsInFlight | None  # None: the world never reports when a command acts
    renders_images: bool = False  # those of sensors, during a step
    injected: str = ""  # delays injected into the world: "whole", or "sensors" if the actuation delay is unknown
    _clock: ClockStatus = field(default=ClockStatus(mode="sim"), init=False)

    def build(self, ledger: Ledger, before: Snapshot, now: Snapshot, *, host_timing: bool = True) -> LatencyInfo:
        """Return the stages of the step from `before`, which its action is based on, to `now`."""
        now_ns, samples, lost = now.now_ns, now.samples, Quality.LOST
        ages_s: dict[str, float] = {}
        age_codes: dict[str, int] = {}
        stamps_ns: list[int] = []
        worst_age = worst_stamp = Quality.OK
        for name in self.sensors:
            sample = samples[name]
            stamps_ns.append(sample.stamp_ns)
            ages_s[name] = age_s = (now_ns - sample.stamp_ns) / NS_PER_S
            quality = lost if sample.quality is lost else sample.stamp_quality
            worst_stamp = worst_stamp or quality  # OK is 0
            if age_s < 0.0 and not quality:
                quality = Quality.NEGATIVE
            worst_age = worst_age or quality
            age_codes[name] = int(quality)
        oldest_ns = min(stamps_ns) if stamps_ns else 0
        quality_of: LatencyQuality = {
            "capture_age_s": age_codes,
            "obs_skew_s": int(worst_stamp if stamps_ns else Quality.UNKNOWN),
            "obs_age_max_s": int(worst_age if stamps_ns else Quality.UNKNOWN),
        }
        latency: LatencyInfo = {
            "capture_age_s": ages_s,
            "obs_skew_s": (max(stamps_ns) - oldest_ns) / NS_PER_S if stamps_ns else math.nan,
            "obs_age_max_s": (now_ns - oldest_ns) / NS_PER_S if stamps_ns else math.nan,
            "quality": quality_of,
        }
        if host_timing:
            self._add_host_stages(latency, ledger, now)
        if self.moves_by_itself:
            self._add_wall_time(latency, ledger, before, now)
        if self.pacer is not None:
            latency["overrun_s"], quality_of["overrun_s"] = self.pacer.overrun_ns / NS_PER_S, int(Quality.OK)
            latency["overruns"], latency["missed_deadlines"] = self.pacer.overruns, self.pacer.missed
        if self.commands is not None:
            self._add_actuation(latency, ledger, before, _find_actuation(now.actuation, self.commands))
        if self.injected:
            latency["injected"], quality_of["injected"] = self._injected_stages(before, now)
        return latency

    def _add_host_stages(self, latency: LatencyInfo, ledger: Ledger, now: Snapshot) -> None:
        returned_ns, entered_ns, observed_ns = ledger.previous_returned_ns, ledger.entered_ns, ledger.observed_ns
        quality = latency["quality"]
        latency["handoff_s"] = (returned_ns - ledger.previous_observed_ns) / NS_PER_S
        latency["inference_s"] = (entered_ns - returned_ns) / NS_PER_S
        latency["policy_s"] = ((ledger.marked_ns if ledger.is_marked else entered_ns) - returned_ns) / NS_PER_S
        latency["gate_s"] = (ledger.gated_ns - entered_ns) / NS_PER_S
        latency["publish_s"] = (ledger.published_ns - ledger.gated_ns) / NS_PER_S
        latency["obs_to_command_s"] = ledger.obs_to_command_ns / NS_PER_S
        latency["world_s"] = (observed_ns - ledger.published_ns) / NS_PER_S
        if self.renders_images:
            latency["render_s"], quality["render_s"] = _rendering(now.render_ns)
        latency["period_s"] = ledger.period_ns / NS_PER_S
        quality["handoff_s"] = quality["inference_s"] = quality["gate_s"] = quality["publish_s"] = 0
        quality["obs_to_command_s"] = quality["world_s"] = 0
        quality["policy_s"] = int(Quality.OK if ledger.is_marked else Quality.UNMARKED)
        quality["period_s"] = int(Quality.FIRST if ledger.is_first else Quality.OK)
        holds_s: dict[str, float] = {}
        hold_codes: dict[str, int] = {}
        for name in self.sensors:
            sample = now.samples[name]
            holds_s[name] = hold_s = (observed_ns - sample.arrival_ns) / NS_PER_S
            # also of a held reading, whose age grows; when a lost world was read is not known
            is_lost = sample.quality is Quality.LOST
            hold_codes[name] = int(Quality.LOST if is_lost else Quality.NEGATIVE if hold_s < 0.0 else Quality.OK)
        latency["hold_s"], quality["hold_s"] = holds_s, hold_codes
        if self.transport:
            latency["transport_s"], quality["transport_s"] = self._by_sensor(now, _transport)
            latency["queue_s"], quality["queue_s"] = self._by_sensor(now, _queue)

    def _add_wall_time(self, latency: LatencyInfo, ledger: Ledger, before: Snapshot, now: Snapshot) -> None:
        quality, clock = latency["quality"], now.clock or self._clock  # a lost world reports no clock
        self._clock = clock
        latency["clock"] = {
            "mode": clock.mode,
            "epoch": clock.epoch,
            "jumps": clock.jumps,
            "rtf": clock.rtf,
            "offset_error_s": clock.offset_error_ns / NS_PER_S,
            "rmw": clock.rmw,
        }
        sent_ns = before.now_ns + ledger.obs_to_command_ns
        latency["data_age_s"], quality["data_age_s"] = self._by_sensor(
            before, lambda each: self._data_age(each, sent_ns)
        )
        latency["jitter_s"] = (ledger.period_ns - self.period_ns) / NS_PER_S
        quality["jitter_s"] = quality["period_s"]
        if self.transport:
            latency["driver_s"], quality["driver_s"] = self._by_sensor(now, _driver)
            latency["transport_excess_s"], quality["transport_excess_s"] = self._by_sensor(now, _transport_excess)

    def _add_actuation(
        self, latency: LatencyInfo, ledger: Ledger, before: Snapshot, found: tuple[Stage, int, str]
    ) -> None:
        (acted_s, acted_quality), behind, method = found
        quality = latency["quality"]
        latency["actuation_s"], quality["actuation_s"] = acted_s, int(acted_quality)
        latency["actuation_behind"], latency["actuation_method"] = behind, ACTUATION_METHODS[method]
        if self.primary is not None:
            sent_ns = before.now_ns + ledger.obs_to_command_ns
            age_s, age_quality = self._data_age(before.samples[self.primary], sent_ns)
            latency["end_to_end_s"], quality["end_to_end_s"] = age_s + acted_s, int(acted_quality or age_quality)

    def _injected_stages(self, before: Snapshot, now: Snapshot) -> tuple[InjectedInfo, InjectedQuality]:
        """Return the injected delays of this step's command and readings, in world time."""
        known = Quality.UNKNOWN if now.injected is None else Quality.OK
        acts = known if self.injected == "whole" else Quality.UNKNOWN
        inference_ns, actuation_ns = math.nan, math.nan
        if now.injected is not None:
            inference_ns, actuation_ns = now.injected.inference_ns, now.injected.actuation_ns
        early = () if before.injected is None else before.injected.early

        def age(sample: Sample) -> Stage:
            age_s, quality = _age(sample, before.now_ns)
            return age_s, Quality.FIRST if not quality and sample.sensor in early else quality

        def data_age(sample: Sample) -> Stage:
            return (before.now_ns - sample.stamp_ns + inference_ns) / NS_PER_S, known or age(sample)[1]

        ages_s, age_codes = self._by_sensor(before, age)
        data_ages_s, data_age_codes = self._by_sensor(before, data_age)
        stages: InjectedInfo = {
            "age_s": ages_s,
            "inference_s": inference_ns / NS_PER_S,
            "actuation_s": actuation_ns / NS_PER_S,
            "data_age_s": data_ages_s,
        }
        quality: InjectedQuality = {
            "age_s": age_codes,
            "inference_s": int(known),
            "actuation_s": int(acts),
            "data_age_s": data_age_codes,
        }
        if self.primary is not None:
            primary = before.samples[self.primary]
            stages["end_to_end_s"] = (before.now_ns - primary.stamp_ns + inference_ns + actuation_ns) / NS_PER_S
            quality["end_to_end_s"] = int(acts or age(primary)[1])
        return stages, quality

    def _by_sensor(
        self, snapshot: Snapshot, stage: Callable[[Sample], Stage]
    ) -> tuple[dict[str, float], dict[str, int]]:
        seconds: dict[str, float] = {}
        codes: dict[str, int] = {}
        for name in self.sensors:
            seconds[name], quality = stage(snapshot.samples[name])
            codes[name] = int(quality)
        return seconds, codes

    def _data_age(self, sample: Sample, sent_ns: int) -> Stage:
        """Return the time from acquisition to the command, or UNSYNCED unless the RTF is 1."""
        if abs(self._clock.rtf - 1.0) > _MAX_RTF_ERROR:
            return math.nan, Quality.UNSYNCED
        return _age(sample, sent_ns)


def _find_actuation(evidence: ActuationEvidence | None, commands: CommandsInFlight) -> tuple[Stage, int, str]:
    """Return the time until the command acted, the number sent since, and the method."""
    found = None if evidence is None else commands.find(evidence.seq)
    if evidence is None or found is None:
        return _UNKNOWN, -1, ""
    published_ns, behind = found
    value = (evidence.acted_ns - published_ns) / NS_PER_S
    quality = Quality.NEGATIVE if value < 0 else Quality.OK
    return (value, Quality.DECLARED if evidence.method == "declared" else quality), behind, evidence.method


def _rendering(render_ns: int | None) -> tuple[float, int]:
    """Return the time of rendering and its quality, where a lost world returns no time."""
    return (math.nan, int(Quality.LOST)) if render_ns is None else (render_ns / NS_PER_S, int(Quality.OK))


def _age(sample: Sample, now_ns: int) -> Stage:
    """Return the time from acquisition to `now_ns`, both on the world's clock."""
    age_s = (now_ns - sample.stamp_ns) / NS_PER_S
    quality = Quality.LOST if sample.quality is Quality.LOST else sample.stamp_quality
    return age_s, Quality.NEGATIVE if age_s < 0.0 and not quality else quality


def _duration(ns: int, sample: Sample, quality: Quality = Quality.OK) -> Stage:
    """Return a duration and its quality, NEGATIVE or that of a held reading instead of OK."""
    value = ns / NS_PER_S
    if quality is not Quality.OK:
        return value, quality
    if value < 0:
        return value, Quality.NEGATIVE
    return value, Quality.OK if sample.quality in _GOOD else sample.quality


def _transport(sample: Sample) -> Stage:
    """Return the time from publication to receipt, across hosts only if their clocks agree."""
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
