"""Episodes of the robot emulator that a policy on the stand-in server drives."""

from __future__ import annotations

from policy_server_faults import check_motion
from robot_rig import ARM, LAYOUT, PERIOD_S

import embodied_env
from embodied_env.policies.chunk_runner import ChunkRunner

MOST_STEPS = 200


class RemoteEpisode:
    """An episode of a rig that is moving by the actions of the stand-in server."""

    def __init__(self, rig, stand_in, metadata="sound"):
        stand_in.set(metadata)
        address = f"openpi://127.0.0.1:{stand_in.port}?timeout_s={0.8 * PERIOD_S}&connect_timeout_s=5"
        self.episode, self.policy = rig.begin(), embodied_env.load_policy(address, ARM)
        self.runner = ChunkRunner(self.policy)
        self.runner.reset(seed=0, episode_index=0)
        self._begin_to_move()
        self.fault_at = len(self.episode.spy.passed)

    def _begin_to_move(self):
        for _ in range(10):
            self.run(4)
            if self.episode.spy.passed[-1][1].report.velocity_si[0] > 0.5:
                return
        raise AssertionError("the robot does not move")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.policy.close()

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


def check_fault(rig, stand_in, fault, record_property):
    """Inject `fault` while the robot moves, and assert what was published."""
    with RemoteEpisode(rig, stand_in, fault.metadata) as remote:
        remote.episode.inject(lambda: stand_in.set(fault.name.removesuffix("_once"), fault.count))
        check_loss(remote, fault.reason, record_property) if fault.reason else check_continuation(remote)
    assert not (stand_in.folder / "pickle_was_executed").exists()


def check_loss(remote, reason, record_property):
    remote.run()
    remote.check(is_lost=True)
    assert remote.episode.ended.startswith(f"policy_lost:{reason}")
    remote.episode.note(record_property)


def check_continuation(remote):
    remote.run(20)
    remote.check(is_lost=False)
    assert remote.episode.ended == ""
