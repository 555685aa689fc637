"""The backend ``delayed_fake``, which is a free-running fake backend with latencies."""

from dataclasses import dataclass, replace

from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.core.types import ActuationEvidence
from embodied_env.plugins.plugin_table import BUILT_IN
from embodied_env.timing.clock import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class FakeDelays:
    """Latencies of `DelayedFake`, s.

    `driver_s`, `transport_s`, `queue_s`: from acquisition of a reading to its publication, receipt and use.
    `publish_s`: duration of `send`. `actuation_s`: from `send` until the command acts, with evidence.
    """

    driver_s: float = 0.0
    transport_s: float = 0.0
    queue_s: float = 0.0
    publish_s: float = 0.0
    actuation_s: float = 0.0


class DelayedFake(FakeBackend):
    """A `FakeBackend` in real time with delayed readings and commands."""

    name = "delayed_fake"

    def __init__(self, contract, *, clock, delays=None, **options):
        super().__init__(contract, clock=clock, free_running=True, **options)
        self.capabilities = replace(self.capabilities, transport=True, actuation=True)
        self._delays = delays or FakeDelays()
        self._newest_sent = None  # sequence number and send time

    def reset(self, request, deadline_ns):
        self._newest_sent = None
        return super().reset(request, deadline_ns)

    def send(self, command):
        sent = super().send(command)
        self._clock.sleep_until_ns(self._clock.now_ns() + ns(self._delays.publish_s))
        self._newest_sent = command.seq, self._clock.now_ns()
        return sent

    def _snapshot(self):
        snapshot, delays = super()._snapshot(), self._delays
        samples = {}
        for name, sample in snapshot.samples.items():
            arrival_ns = min(sample.arrival_ns, snapshot.now_ns)  # a host that is busy after the read adds no delay
            received_ns = arrival_ns - ns(delays.queue_s)
            source_ns = received_ns - ns(delays.transport_s)
            acquired_ns = source_ns - ns(delays.driver_s)
            samples[name] = replace(
                sample,
                stamp_ns=acquired_ns,
                header_ns=acquired_ns,
                source_ns=source_ns,
                received_ns=received_ns,
                arrival_ns=arrival_ns,
                arrival_system_ns=arrival_ns,
                transport_excess_s=0.0,
            )
        if self._newest_sent is None:
            return replace(snapshot, samples=samples)
        seq, sent_ns = self._newest_sent
        evidence = ActuationEvidence(seq=seq, acted_ns=sent_ns + ns(delays.actuation_s), method="controller")
        return replace(snapshot, samples=samples, actuation=evidence)


def ns(duration_s):
    return round(duration_s * NS_PER_S)


BUILT_IN["backends"]["delayed_fake.realtime"] = f"{__name__}:DelayedFake"
