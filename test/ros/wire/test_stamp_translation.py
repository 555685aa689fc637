from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stamped_robot import MS, StampedRobot

from embodied_env.core.code_types import Quality
from embodied_env.ros.wire.stamp_translation import SlidingMinimum, Sync, is_on_our_host, suspect_clock
from embodied_env.timing.clock import NS_PER_S


class Scene(StampedRobot):
    """A robot whose messages take 3 ms from stamp to publication and 2 ms to arrive."""

    def arrival(self, *, source_s=0.002, received_s=0.0, source_ns=None):
        """Return a message that arrives now and was published this long ago, by its publisher's clock."""
        now_ns = self.clock.system_ns()
        info = {
            "source_timestamp": now_ns - round(source_s * NS_PER_S) if source_ns is None else source_ns,
            "received_timestamp": now_ns - round(received_s * NS_PER_S),
        }
        return SimpleNamespace(info=info, arrival_ns=self.clock.now_ns(), arrival_system_ns=now_ns)

    def translate(self, *, age_s=0.005, header_ns=None, **stamps):
        if header_ns is None:
            header_ns = self.clock.system_ns() - round(age_s * NS_PER_S)
        return self.stamping.translate(self.arrival(**stamps), header_ns)

    def age_s(self, placed):
        return (self.watch.now_ns() - placed.stamp_ns) / NS_PER_S

    def step_utc(self, seconds):
        self.clock.ahead_ns += round(seconds * NS_PER_S)
        self.watch.resync()


# ----------------------------------------------------------------------------------------- the clock of this host


def test_a_stamp_of_this_host_is_used_as_is():
    scene = Scene()
    placed = scene.translate(age_s=0.005)
    assert scene.age_s(placed) == pytest.approx(0.005)
    assert (placed.quality, placed.stamp_quality, placed.suspect_clock) == (Quality.OK, Quality.OK, "")


@pytest.mark.parametrize("step_s", [10.0, -10.0])
def test_ages_of_this_host_do_not_change_with_a_utc_step(step_s):
    scene = Scene()
    scene.step_utc(step_s)
    placed = scene.translate(age_s=0.005)
    assert scene.age_s(placed) == pytest.approx(0.005)
    assert placed.quality is Quality.OK


def test_a_stamp_slightly_ahead_is_accepted():
    placed = Scene().translate(age_s=-0.004)
    assert (placed.quality, placed.stamp_quality) == (Quality.OK, Quality.OK)


def test_a_stamp_further_ahead_is_in_the_future():
    placed = Scene().translate(age_s=-0.006)
    assert (placed.quality, placed.stamp_quality) == (Quality.FUTURE, Quality.FUTURE)
    assert placed.reason == "stamped 0.006 s after its arrival"


@pytest.mark.parametrize(("age_s", "quality"), [(-0.019, Quality.OK), (-0.021, Quality.FUTURE)])
def test_a_synchronised_clock_may_be_further_ahead(age_s, quality):
    scene = Scene(host=False, sync="chrony", error_s=0.001)
    assert scene.translate(age_s=age_s).quality is quality


def test_a_synchronised_stamp_ahead_within_its_bound_counts_from_its_arrival():
    scene = Scene(host=False, sync="chrony", error_s=0.001)
    placed = scene.translate(age_s=-0.015)
    assert (scene.age_s(placed), placed.stamp_quality) == (0.0, Quality.UNSYNCED)


@pytest.mark.parametrize(("age_s", "quality"), [(0.003, Quality.UNSYNCED), (0.0041, Quality.OK)])
def test_an_age_below_twice_the_clock_error_is_marked(age_s, quality):
    scene = Scene(host=False, sync="ptp", error_s=0.002)
    placed = scene.translate(age_s=age_s)
    assert (placed.quality, placed.stamp_quality) == (Quality.OK, quality)
    assert scene.age_s(placed) == pytest.approx(age_s)


@pytest.mark.parametrize(
    ("age_s", "suspect"),
    [
        (0.1, ""),
        (-4.9, ""),
        (-36.95, "tai"),
        (-17.9, "gps"),
        (-25.0, "epoch"),
        (3600.0, "epoch"),
        (37.0, "epoch"),
    ],
)
def test_a_foreign_clock_is_suspected_by_its_offset(age_s, suspect):
    assert suspect_clock(age_s) == suspect
    assert Scene().translate(age_s=age_s).suspect_clock == suspect


# ------------------------------------------------------------------------------------------------ missing stamps


def test_a_message_without_a_required_stamp_is_rejected():
    placed = Scene().translate(header_ns=0)
    assert (placed.quality, placed.reason) == (Quality.ZERO_STAMP, "the message has no stamp")


def test_without_a_required_stamp_the_publication_time_is_used():
    scene = Scene(require_stamp=False)
    placed = scene.translate(header_ns=0, source_s=0.002)
    assert (placed.quality, placed.stamp_quality) == (Quality.OK, Quality.FALLBACK_SOURCE)
    assert scene.age_s(placed) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("scene", "source_ns"),
    [(Scene(require_stamp=False), 0), (Scene(require_stamp=False), None), (Scene(require_stamp=False, host=False), 5)],
    ids=["no stamp", "unknown", "another clock"],
)
def test_without_a_publication_time_the_arrival_is_used(scene, source_ns):
    arrival = scene.arrival(source_ns=0)
    arrival.info["source_timestamp"] = source_ns
    placed = scene.stamping.translate(arrival, 0)
    assert (placed.quality, placed.stamp_quality) == (Quality.OK, Quality.FALLBACK_RECEIVED)
    assert scene.age_s(placed) == 0.0


def test_a_future_publication_time_is_in_the_future():
    assert Scene(require_stamp=False).translate(header_ns=0, source_s=-60.0).quality is Quality.FUTURE


# ------------------------------------------------------------------------------------------------ unknown clock


@pytest.mark.parametrize("host", [False, None], ids=["another host", "not known"])
def test_an_unsynchronised_clock_is_unusable_and_names_the_key_to_declare(host):
    placed = Scene(host=host).translate(age_s=0.005)
    assert (placed.quality, placed.stamp_quality) == (Quality.UNSYNCED, Quality.UNSYNCED)
    assert "backends.real.clocks.tcp: sync: same_host" in placed.reason


def test_a_declared_clock_overrides_detection():
    assert Scene(host=False, sync="same_host").translate().quality is Quality.OK
    assert Scene(host=True, sync="none").translate().quality is Quality.UNSYNCED


@pytest.mark.parametrize("skew_s", [0.1, -0.1, 1e6])
def test_with_a_least_delay_only_differences_count(skew_s):
    scene = Scene(host=False, least_delay_s=0.01)
    ages_s = []
    for late_s in (0.005, 0.005, 0.065, 0.005):
        scene.clock.steady_ns += 50 * MS
        placed = scene.translate(age_s=late_s + skew_s)
        assert (placed.quality, placed.stamp_quality) == (Quality.OK, Quality.UNSYNCED)
        ages_s.append(scene.age_s(placed))
    assert ages_s == pytest.approx([0.01, 0.01, 0.07, 0.01])


def test_the_minimum_expires_with_the_window():
    least = SlidingMinimum(10)
    assert [least.add(at, value) for at, value in [(0, 5), (4, 9), (8, 7), (11, 8), (30, 9)]] == [5, 5, 5, 7, 9]


# ------------------------------------------------------------------------------------------------------ transport


def test_transport_on_this_host_is_taken_from_the_stamps():
    scene = Scene()
    travel = scene.stamping.transport(scene.arrival())
    assert (travel.quality, travel.excess_s) == (Quality.OK, None)


def test_a_negative_transport_is_marked():
    scene = Scene()
    assert scene.stamping.transport(scene.arrival(source_s=-0.001)).quality is Quality.NEGATIVE


def test_a_middleware_without_stamps_gives_no_transport():
    scene = Scene()
    assert scene.stamping.transport(scene.arrival(source_ns=0)).quality is Quality.UNKNOWN


@pytest.mark.parametrize("skew_s", [0.1, -0.1])
@pytest.mark.parametrize("spec", [{"sync": "none"}, {}, {"sync": "none", "least_delay_s": 0.0}])
def test_a_skewed_clock_never_gives_a_trusted_transport(spec, skew_s):
    scene = Scene(host=False, **spec)
    excess_s = []
    for took_s in (0.002, 0.012, 0.002):
        scene.clock.steady_ns += 50 * MS
        travel = scene.stamping.transport(scene.arrival(source_s=took_s + skew_s))
        assert travel.quality is Quality.UNSYNCED
        excess_s.append(travel.excess_s)
    assert excess_s == pytest.approx([0.0, 0.01, 0.0])


@pytest.mark.parametrize(("took_s", "quality"), [(0.0019, Quality.UNSYNCED), (0.0021, Quality.OK)])
def test_a_transport_below_twice_the_clock_error_is_marked(took_s, quality):
    scene = Scene(host=False, sync="chrony", error_s=0.001)
    travel = scene.stamping.transport(scene.arrival(source_s=took_s))
    assert (travel.quality, travel.excess_s) == (quality, None)


@pytest.mark.parametrize("step_s", [10.0, -10.0])
def test_a_transport_across_a_utc_step_is_marked_once(step_s):
    scene = Scene()
    source_ns = scene.clock.system_ns()
    scene.clock.steady_ns += 2 * MS
    scene.step_utc(step_s)
    assert scene.stamping.transport(scene.arrival(source_ns=source_ns)).quality is Quality.JUMP
    scene.clock.steady_ns += 2 * NS_PER_S
    assert scene.stamping.transport(scene.arrival()).quality is Quality.OK


def test_an_acquisition_before_a_small_utc_step_is_marked_once():
    scene = Scene()
    header_ns = scene.clock.system_ns()
    scene.clock.steady_ns += 2 * MS
    scene.step_utc(-0.02)
    assert scene.translate(header_ns=header_ns - 20 * MS).stamp_quality is Quality.JUMP
    scene.clock.steady_ns += 2 * NS_PER_S
    assert scene.translate(age_s=0.005).stamp_quality is Quality.OK


def test_messages_before_and_after_a_large_step_back_are_distinguished():
    scene = Scene()
    scene.step_utc(-10.0)
    scene.clock.steady_ns += 20 * MS
    assert scene.translate(age_s=0.005).stamp_quality is Quality.OK
    assert scene.stamping.transport(scene.arrival()).quality is Quality.OK


def test_a_utc_step_does_not_affect_the_minimum():
    scene = Scene(host=False)
    scene.stamping.transport(scene.arrival(source_s=0.1))
    scene.step_utc(10.0)
    assert scene.stamping.transport(scene.arrival(source_s=0.1, received_s=10.0)).quality is Quality.JUMP
    scene.clock.steady_ns += 2 * NS_PER_S
    travel = scene.stamping.transport(scene.arrival(source_s=10.1))  # of another host, whose clock was not stepped
    assert travel.excess_s == pytest.approx(0.0)


# ---------------------------------------------------------------------------------------------- simulated time


@pytest.fixture
def simulated():
    scene: Any = Scene(simulated=True, host=None)
    for sim_ns in range(0, NS_PER_S, 10 * MS):
        scene.clock.steady_ns += 10 * MS
        scene.simulated.on_clock(sim_ns, scene.clock.now_ns())
    scene.sim_ns = sim_ns
    return scene


def test_simulated_stamps_are_valid_from_any_host(simulated):
    placed = simulated.translate(header_ns=simulated.sim_ns - 30 * MS)
    assert placed.quality is Quality.OK
    assert simulated.simulated.now_ns() - placed.stamp_ns == 30 * MS


def test_a_utc_stamp_is_not_simulated_time(simulated):
    placed = simulated.translate(header_ns=simulated.clock.system_ns())
    assert (placed.quality, placed.suspect_clock) == (Quality.FUTURE, "epoch")


def test_a_late_message_of_an_old_epoch_is_rejected(simulated):
    late_ns = simulated.sim_ns
    simulated.simulated.on_clock(0, simulated.clock.now_ns())
    assert simulated.translate(header_ns=late_ns).quality is Quality.FUTURE


def test_a_publication_time_is_not_a_simulated_stamp(simulated):
    simulated.stamping._require_stamp = False
    simulated.stamping.set_publisher_locality(True)
    assert simulated.translate(header_ns=0).stamp_quality is Quality.FALLBACK_RECEIVED


# ---------------------------------------------------------------------------------------------------- this host


class Graph:
    """Endpoint information of a topic, with `host` encoded as in Fast DDS."""

    def __init__(self, publishers, *, listens=True):
        self._publishers = publishers
        self._listeners = [("other", b"\x11\x11"), *([("us", b"\xaa\xbb")] if listens else [])]

    def get_name(self):
        return "us"

    def get_namespace(self):
        return "/"

    def get_publishers_info_by_topic(self, _topic):
        return [self._end("robot", host) for host in self._publishers]

    def get_subscriptions_info_by_topic(self, _topic):
        return [self._end(name, host) for name, host in self._listeners]

    def _end(self, name, host):
        return SimpleNamespace(
            node_name=name, node_namespace="/", endpoint_gid=[1, 15, *host, 1, 0, 9, 9, 0, 0, 0, 0, 0, 0, 19, 3]
        )


@pytest.mark.parametrize(
    ("publishers", "rmw", "found"),
    [
        ([b"\xaa\xbb"], "rmw_fastrtps_cpp", True),
        ([b"\xaa\xbb"], "rmw_fastrtps_dynamic_cpp", True),
        ([b"\xaa\xbc"], "rmw_fastrtps_cpp", False),
        ([b"\xaa\xbb", b"\x11\x11"], "rmw_fastrtps_cpp", False),
        ([], "rmw_fastrtps_cpp", None),
        ([b"\xaa\xbb"], "rmw_cyclonedds_cpp", None),
    ],
)
def test_the_gid_shows_whether_a_publisher_is_on_this_host(publishers, rmw, found):
    assert is_on_our_host(Graph(publishers), "topic", rmw) is found


def test_without_our_own_endpoint_the_host_is_unknown():
    assert is_on_our_host(Graph([b"\xaa\xbb"], listens=False), "topic", "rmw_fastrtps_cpp") is None


@pytest.mark.parametrize(
    ("sync", "host", "found"),
    [
        ("auto", True, Sync.SAME),
        ("auto", False, Sync.UNKNOWN),
        ("auto", None, Sync.UNKNOWN),
        ("same_host", False, Sync.SAME),
        ("ptp", True, Sync.SYNCED),
        ("chrony", None, Sync.SYNCED),
        ("none", True, Sync.UNKNOWN),
    ],
)
def test_the_sync_of_a_clock_follows_profile_and_host(sync, host, found):
    assert Scene(host=host, sync=sync).stamping.sync is found
