"""Faults of a policy server on the robot emulator, with the published command topic as evidence.

The page docs/reference/policy_server_faults.md lists them; test/envs has them without ROS. All but three are `long`.
"""

from __future__ import annotations

import pytest
from policy_server_faults import AT_LOAD, FAULTS, StandIn, check_motion

pytest.importorskip("rclpy", reason="needs rclpy")
pytest.importorskip("websockets", reason="needs websockets")

from test_faults import ARM, ENVIRONMENT, LAYOUT, PERIOD_S, Rig

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.policies.chunk_runner import ChunkRunner

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]

IN_DEFAULT_RUN = ("stalled", "nan")
MOST_STEPS = 200


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy_server_faults")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "ROS_LOG_DIR": str(folder / "log")}.items():
            patch.setenv(name, value)
        rig = Rig(folder)
        yield rig
        rig.close()


@pytest.fixture
def stand_in(tmp_path):
    stand_in = StandIn(tmp_path)
    yield stand_in
    if stand_in.process.poll() is None:
        stand_in.close()


@pytest.fixture
def act(rig, stand_in):
    """Return a function that makes the episode and the policy of the stand-in, and moves."""
    policies = []

    def start(metadata="sound"):
        stand_in.set(metadata)
        address = f"openpi://127.0.0.1:{stand_in.port}?timeout_s={0.8 * PERIOD_S}&connect_timeout_s=5"
        policies.append(embodied_env.load_policy(address, ARM))
        moving = Moving(rig.begin(), policies[-1])
        for _ in range(10):
            moving.run(4)
            if moving.episode.spy.passed[-1][1].report.velocity_si[0] > 0.5:
                moving.fault_at = len(moving.episode.spy.passed)
                return moving
        raise AssertionError("the robot does not move")

    yield start
    for policy in policies:
        policy.close()


class Moving:
    """An episode that a policy of the stand-in drives."""

    def __init__(self, episode, policy):
        self.episode, self.runner = episode, ChunkRunner(policy)
        self.runner.reset(seed=0, episode_index=0)
        self.fault_at = 0

    def run(self, steps=MOST_STEPS):
        """Take at most `steps` steps."""
        episode = self.episode
        for _ in range(steps):
            if episode.ended:
                break
            episode.observation = episode.step(self.runner(episode.observation)).observation

    def check(self, *, is_lost):
        """Assert what was published: the messages received by a subscriber of the command topic."""
        self.episode.check()  # they equal what the arbiter sent, within every limit
        commands = [command for _, command in self.episode.spy.passed]
        check_motion(self.episode.published, commands, self.fault_at, LAYOUT.limits, is_lost=is_lost)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.name in IN_DEFAULT_RUN else pytest.mark.long)
        for fault in FAULTS
    ],
)
def test_fault_of_a_server(act, stand_in, fault, record_property):
    moving = act(fault.metadata)
    moving.episode.inject(lambda: stand_in.set(fault.name.removesuffix("_once"), fault.count))
    if fault.reason:
        moving.run()
        moving.check(is_lost=True)
        assert moving.episode.ended.startswith(f"policy_lost:{fault.reason}")
        moving.episode.note(record_property)
    else:
        moving.run(20)
        moving.check(is_lost=False)
        assert moving.episode.ended == ""
    assert not (stand_in.folder / "pickle_was_executed").exists()


def test_killed_server(act, stand_in, record_property):
    moving = act()
    moving.episode.inject(stand_in.kill)
    moving.run()
    moving.check(is_lost=True)
    assert moving.episode.ended.startswith("policy_lost:connection refused")
    moving.episode.note(record_property)


@pytest.mark.long
def test_frozen_server(act, stand_in, record_property):
    moving = act()
    moving.episode.inject(stand_in.freeze)
    moving.run()
    stand_in.kill()
    moving.check(is_lost=True)
    assert moving.episode.ended.startswith("policy_lost:no connection in time")
    moving.episode.note(record_property)


@pytest.mark.long
def test_restarted_server(act, stand_in):
    moving = act()
    stand_in.kill()
    moving.run(3)
    stand_in.start()
    moving.run(20)
    moving.check(is_lost=False)


@pytest.mark.long
def test_restarted_server_with_another_model(act, stand_in):
    moving = act()
    stand_in.kill()
    moving.run(1)
    stand_in.start()
    stand_in.set("another_model")
    moving.run()
    moving.check(is_lost=True)
    assert moving.episode.ended.startswith("policy_lost:server restarted with other metadata")


@pytest.mark.long
@pytest.mark.parametrize("name", AT_LOAD)
def test_fault_at_load_moves_nothing(rig, stand_in, name):
    episode = rig.begin()
    stand_in.set(name)
    with pytest.raises(UsageError, match=AT_LOAD[name]):
        embodied_env.load_policy(f"openpi://127.0.0.1:{stand_in.port}?connect_timeout_s=0.2", ARM)
    episode.check()
    assert all(values == episode.published[0] for values in episode.published)
