"""``info["latency"]``: the stages of a step in seconds, each with its quality.

::

    acquired ─driver─▶ published ─transport─▶ received ─queue─▶ taken ─hold─▶ frozen      each sensor's way in
    frozen ─handoff─▶ returned ─inference─▶ entered ─gate─▶ judged ─publish─▶ sent        obs_to_command: their sum
    acquired ───────────────────────── data age ────────────────────────────▶ sent ─actuation─▶ acts
    acquired ───────────────────────── end to end, of the primary sensor ─────────────────────▶ acts

A duration is the difference of two stamps of one clock. What has none is NaN and its quality says why; a negative one
stays negative, and is named. Definitions: docs/clocks.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.core.latency.ledger import Ledger, StepEvent
from embodied_env.core.pacing import DeadlineCounts
from embodied_env.core.types import ActuationEvidence, ClockStatus, Sample, Snapshot

Stages = dict[str, object]
Stage = tuple[float, Quality]

ACTUATION_METHODS: Mapping[str, int] = {"": 0, "echo": 1, "controller": 2, "declared": 3}
"""How it is known that a command acts (`embodied_env.core.types.Actuation`), and its number in ``actuation_method``."""

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)
_REMEMBERED = 64  # commands whose evidence may still come
_ALIKE = 0.01  # how far the real-time factor may be from 1 for durations of both clocks to be added
_UNKNOWN: Stage = (math.nan, Quality.UNKNOWN)


class CommandsInFlight:
    """When each of the last commands left, so that evidence of one can be told by its number."""

    def __init__(self) -> None:
        """Begin with none."""
        self._left: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def begin(self) -> None:
        """Forget those of the last episode."""
        self._left.clear()

    def record_sent(self, seq: int, published_ns: int) -> None:
        """The command `seq` left at `published_ns` of the steady clock."""
        self._left.append((seq, published_ns))

    def find(self, seq: int) -> tuple[int, int] | None:
        """Return when the command left, and how many have left since; None: it is not one of these."""
        for behind, (number, published_ns) in enumerate(reversed(self._left)):
            if number == seq:
                return published_ns, behind
        return None


class LatencyInfoBuilder:
    """Builds ``info["latency"]`` for one stepper. Its keys are fixed by the world's capabilities."""

    def __init__(  # noqa: PLR0913 - each a fact of its own
        self,
        sensors: tuple[str, ...],
        *,
        primary: str | None,
        period_ns: int,
        transport: bool,
        moves_by_itself: bool,
        pacer: DeadlineCounts | None,
        actuation: bool,
        injected: str = "",
    ) -> None:
        """Resolve what can be measured.

        Args:
            sensors: those that are told.
            primary: the sensor that ``end_to_end_s`` counts from; None: there is none.
            period_ns: the control period.
            transport: middleware stamps can be related to our clock.
            moves_by_itself: the world's time is wall time, so that both may be added.
            pacer: of a world that is paced.
            actuation: evidence may come that a command acts.
            injected: delays are put into the world: "whole", or "sensors" where nobody knows of the actuation.
        """
        self._sensors = sensors
        self._primary = primary
        self._period_ns = period_ns
        self._transport = transport
        self._moves_by_itself = moves_by_itself
        self._pacer = pacer
        self._actuation = actuation
        self._injected = injected
        self._clock = ClockStatus(mode="sim")
        self._all_ok: dict[str, object] = dict.fromkeys(sensors, int(Quality.OK))

    def build(self, ledger: Ledger, before: Snapshot, now: Snapshot, commands: CommandsInFlight) -> Stages:
        """Return the stages of the step that is being accounted for.

        Args:
            ledger: its stamps.
            before: the snapshot that its action is based on, as it was settled.
            now: the one that it ended with.
            commands: when commands left.
        """
        stages: Stages = ledger.durations_s()
        quality: Stages = ledger.qualities()
        self._put_readings(stages, quality, now, ledger.at_ns(StepEvent.OBSERVED))
        if self._transport:
            self._put_each(stages, quality, "transport_s", _transport, now)
            self._put_each(stages, quality, "queue_s", _queue, now)
        if self._moves_by_itself:
            stages["clock"] = self._clock_now(now)
            self._put_each(stages, quality, "data_age_s", lambda sample: self._data_age(sample, before, ledger), before)
            _put(stages, quality, "jitter_s", self._jitter(ledger))
            if self._transport:
                self._put_each(stages, quality, "driver_s", _driver, now)
                self._put_each(stages, quality, "transport_excess_s", _transport_excess, now)
        if self._pacer is not None:
            _put(stages, quality, "overrun_s", (self._pacer.overrun_ns / NS_PER_S, Quality.OK))
            stages["overruns"], stages["missed_deadlines"] = self._pacer.overruns, self._pacer.missed
        if self._actuation:
            acted, behind, method = self._acted(now.actuation, commands)
            _put(stages, quality, "actuation_s", acted)
            stages["actuation_behind"], stages["actuation_method"] = behind, ACTUATION_METHODS[method]
            if self._primary is not None:
                data_age = self._data_age(before.samples[self._primary], before, ledger)
                _put(stages, quality, "end_to_end_s", _add(data_age, acted))
        if self._injected:
            stages["injected"], quality["injected"] = self._put_in(before, now)
        stages["quality"] = quality
        return stages

    def _put_readings(self, stages: Stages, quality: Stages, now: Snapshot, frozen_ns: int) -> None:
        """Put in how old each reading is, how long it lay here, and what they are together."""
        samples, now_ns = now.samples, now.now_ns
        ages: dict[str, float] = {}
        holds: dict[str, float] = {}
        stamps: list[int] = []
        all_ok = True
        for name in self._sensors:
            sample = samples[name]
            stamps.append(sample.stamp_ns)
            ages[name] = age = (now_ns - sample.stamp_ns) / NS_PER_S
            holds[name] = hold = (frozen_ns - sample.arrival_ns) / NS_PER_S
            if not (sample.quality is Quality.OK and sample.stamp_quality is Quality.OK and age >= 0 and hold >= 0):
                all_ok = False
        stages["capture_age_s"], stages["hold_s"] = ages, holds
        if not stamps:
            stages["obs_skew_s"] = stages["obs_age_max_s"] = math.nan
        else:
            first_ns = min(stamps)
            stages["obs_skew_s"] = (max(stamps) - first_ns) / NS_PER_S
            stages["obs_age_max_s"] = (now_ns - first_ns) / NS_PER_S
        if stamps and all_ok:
            quality["capture_age_s"], quality["hold_s"] = self._all_ok.copy(), self._all_ok.copy()
            quality["obs_skew_s"] = quality["obs_age_max_s"] = 0
        else:
            self._qualify_readings(quality, now, frozen_ns)

    def _qualify_readings(self, quality: Stages, now: Snapshot, frozen_ns: int) -> None:
        """Say how good each of them is. The skew is as good as the worst stamp, and the oldest age as the worst age."""
        fresh = {name: now.samples[name] for name in self._sensors}
        ages = {name: _age(sample, now.now_ns)[1] for name, sample in fresh.items()}
        holds = {
            name: _duration_with_quality(frozen_ns - sample.arrival_ns, sample)[1] for name, sample in fresh.items()
        }
        quality["capture_age_s"] = {name: int(code) for name, code in ages.items()}
        quality["hold_s"] = {name: int(code) for name, code in holds.items()}
        stamps = [_stamp_quality(sample) for sample in fresh.values()]
        quality["obs_skew_s"] = int(_worst(stamps) if stamps else Quality.UNKNOWN)
        quality["obs_age_max_s"] = int(_worst(list(ages.values())) if ages else Quality.UNKNOWN)

    def _put_each(
        self, stages: Stages, quality: Stages, name: str, of: Callable[[Sample], Stage], snapshot: Snapshot
    ) -> None:
        """Put in a stage of each sensor."""
        values: dict[str, float] = {}
        codes: dict[str, int] = {}
        for sensor in self._sensors:
            values[sensor], code = of(snapshot.samples[sensor])
            codes[sensor] = int(code)
        stages[name], quality[name] = values, codes

    def _put_in(self, before: Snapshot, now: Snapshot) -> tuple[Stages, Stages]:
        """Return the delays that were put into the world, in its own time, and their qualities.

        They are of this step's command and of the readings that it is based on. Nothing measured is added to them.
        """
        put, early = now.injected, () if before.injected is None else before.injected.early
        ages_ns: dict[str, int] = {}
        at_hand: dict[str, Quality] = {}
        for name in self._sensors:
            sample = before.samples[name]
            ages_ns[name] = before.now_ns - sample.stamp_ns
            at_hand[name] = _age(sample, before.now_ns)[1]
            if at_hand[name] is Quality.OK and name in early:
                at_hand[name] = Quality.FIRST
        known = Quality.UNKNOWN if put is None else Quality.OK
        inference_ns, actuation_ns = (math.nan, math.nan) if put is None else (put.inference_ns, put.actuation_ns)
        acts = known if self._injected == "whole" else Quality.UNKNOWN
        stages: Stages = {
            "age_s": {name: age_ns / NS_PER_S for name, age_ns in ages_ns.items()},
            "inference_s": inference_ns / NS_PER_S,
            "actuation_s": actuation_ns / NS_PER_S,
            "data_age_s": {name: (age_ns + inference_ns) / NS_PER_S for name, age_ns in ages_ns.items()},
        }
        quality: Stages = {
            "age_s": {name: int(code) for name, code in at_hand.items()},
            "inference_s": int(known),
            "actuation_s": int(acts),
            "data_age_s": {name: int(_worst([known, code])) for name, code in at_hand.items()},
        }
        if self._primary is not None:
            total_ns = ages_ns[self._primary] + inference_ns + actuation_ns
            stages["end_to_end_s"] = total_ns / NS_PER_S
            quality["end_to_end_s"] = int(_worst([acts, at_hand[self._primary]]))
        return stages, quality

    def _data_age(self, sample: Sample, before: Snapshot, ledger: Ledger) -> Stage:
        """From the acquisition to the command that is based on it: the world's time and ours, where they run alike."""
        if abs(self._clock.rtf - 1.0) > _ALIKE:
            return math.nan, Quality.UNSYNCED
        return _age(sample, before.now_ns + ledger.obs_to_command_ns)

    def _jitter(self, ledger: Ledger) -> Stage:
        return (ledger.period_ns - self._period_ns) / NS_PER_S, ledger.quality_of_period

    def _clock_now(self, snapshot: Snapshot) -> Stages:
        clock = self._clock = snapshot.clock or self._clock  # a world that is lost says nothing of its clock
        return {
            "mode": clock.mode,
            "epoch": clock.epoch,
            "jumps": clock.jumps,
            "rtf": clock.rtf,
            "offset_error_s": clock.offset_error_ns / NS_PER_S,
            "rmw": clock.rmw,
        }

    @staticmethod
    def _acted(evidence: ActuationEvidence | None, commands: CommandsInFlight) -> tuple[Stage, int, str]:
        """Return the duration, how many commands have left since, and how it is known."""
        found = None if evidence is None else commands.find(evidence.seq)
        if evidence is None or found is None:
            return _UNKNOWN, -1, ""
        published_ns, behind = found
        value = (evidence.acted_ns - published_ns) / NS_PER_S
        quality = Quality.DECLARED if evidence.method == "declared" else _sign(value)
        return (value, quality), behind, evidence.method


def _put(stages: Stages, quality: Stages, name: str, stage: Stage) -> None:
    stages[name], quality[name] = stage[0], int(stage[1])


def _age(sample: Sample, now_ns: int) -> Stage:
    """From the acquisition to `now_ns`, both on the world's clock; as good as the reading and its stamp."""
    value = (now_ns - sample.stamp_ns) / NS_PER_S
    quality = _stamp_quality(sample)
    return value, Quality.NEGATIVE if quality is Quality.OK and value < 0 else quality


def _stamp_quality(sample: Sample) -> Quality:
    quality = sample.quality
    return sample.stamp_quality if quality is Quality.OK or quality in _GOOD else quality


def _duration_with_quality(ns: int, sample: Sample) -> Stage:
    value = ns / NS_PER_S
    if value < 0:
        return value, Quality.NEGATIVE
    quality = sample.quality
    return value, Quality.OK if quality in _GOOD else quality


def _transport(sample: Sample) -> Stage:
    """From the publication to the receipt: between two hosts only with clocks that are known to agree."""
    if sample.source_ns is None or sample.received_ns is None:
        return _UNKNOWN
    quality = sample.transport_quality
    if quality is not Quality.OK:
        is_excess_only = quality is Quality.UNSYNCED and sample.transport_excess_s is not None
        if is_excess_only or quality in (Quality.UNKNOWN, Quality.JUMP):
            return math.nan, quality
    return _measured(sample.received_ns - sample.source_ns, sample, quality)


def _queue(sample: Sample) -> Stage:
    """From the receipt to the taking, both on this host."""
    if sample.received_ns is None or sample.arrival_system_ns is None:
        return _UNKNOWN
    if sample.transport_quality is Quality.JUMP:
        return math.nan, Quality.JUMP
    return _measured(sample.arrival_system_ns - sample.received_ns, sample, Quality.OK)


def _driver(sample: Sample) -> Stage:
    """From the acquisition to the publication: where both are stamped by one clock, as far as is known."""
    if sample.source_ns is None or sample.header_ns is None:
        return _UNKNOWN
    if sample.stamp_quality is not Quality.OK:
        return math.nan, sample.stamp_quality
    return _measured(sample.source_ns - sample.header_ns, sample, Quality.OK)


def _transport_excess(sample: Sample) -> Stage:
    """How much longer it took than the quickest of late: what is known of a way between clocks that do not agree."""
    if sample.transport_excess_s is None:
        return _UNKNOWN
    return _measured(round(sample.transport_excess_s * NS_PER_S), sample, Quality.OK)


def _measured(ns: int, sample: Sample, quality: Quality) -> Stage:
    """Return a duration. It is what it is: one that is negative is named, and so is one of a reading that is held."""
    value = ns / NS_PER_S
    if quality is not Quality.OK:
        return value, quality
    return _duration_with_quality(ns, sample)


def _sign(value: float) -> Quality:
    return Quality.NEGATIVE if value < 0 else Quality.OK


def _worst(qualities: list[Quality]) -> Quality:
    """Return one that is not OK, if there is any."""
    for quality in qualities:
        if quality is not Quality.OK:
            return quality
    return Quality.OK


def _add(first: Stage, second: Stage) -> Stage:
    return first[0] + second[0], _worst([second[1], first[1]])
