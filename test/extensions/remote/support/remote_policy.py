"""Episodes of the robot emulator that a policy drives, such as one on the stand-in server."""

from policy_server_faults import check_motion
from robot_rig import ARM, ATTEMPTS, LAYOUT, PERIOD_S, STALLED

import embodied_env
from embodied_env.core.policy import NoAction
from embodied_env.policies.chunk_execution import ChunkRunner

MOST_STEPS = 200


class PolicyEpisode:
    """An episode of a rig that is moving by the actions of a policy."""

    def __init__(self, rig, runner):
        self.rig, self.runner = rig, runner
        try:
            self.begin()
        except BaseException:
            runner.close()
            raise

    def begin(self):
        """Begin an episode and move, and repeat this if a busy machine ends the episode."""
        for _ in range(ATTEMPTS):
            self.episode, self.braking_from = self.rig.begin(), None
            self.runner.reset(seed=0, episode_index=0)
            for _ in range(10):
                self.run(4)
                if self.episode.spy.passed[-1][1].report.velocity_si[0] > 0.5:
                    self.fault_at = len(self.episode.spy.passed)
                    return
        raise AssertionError(f"the robot does not move: {self.episode.ended}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.runner.close()

    def run(self, steps=MOST_STEPS):
        episode = self.episode
        for _ in range(steps):
            if episode.ended:
                break
            action = self.runner(episode.observation)
            for name, account in self.runner.take_accounts().items():
                episode.env.unwrapped.annotate(name, account)
            if not isinstance(action, NoAction):
                self.braking_from = None
            elif self.braking_from is None:
                self.braking_from = len(episode.spy.passed)
            episode.observation = episode.step(action).observation

    def has_stalled(self, reason):
        """Return whether the episode was ended by a stall of the machine, or an answer that it made late."""
        ended = self.episode.ended
        is_late = ended.startswith("policy_lost:no ") and not ended.startswith(f"policy_lost:{reason}")
        return ended in STALLED or is_late

    def check(self, *, is_lost):
        """Assert the published messages, which a subscriber of the command topic received."""
        self.episode.check()  # they equal what the arbiter sent, within every limit
        commands = [command for _, command in self.episode.spy.passed]
        if is_lost and self.runner.mode != "wait":  # the last chunk was executed first
            before = enumerate(commands[: self.braking_from], start=1)
            self.fault_at = max(number for number, command in before if command.report.velocity_si[0] > 0)
        check_motion(self.episode.published, commands, self.fault_at, LAYOUT.limits, is_lost=is_lost)


class RemoteEpisode(PolicyEpisode):
    def __init__(self, rig, stand_in, metadata="sound", chunks="wait"):
        stand_in.set(metadata)
        timeout_s = PERIOD_S * (0.8 if chunks == "wait" else 6.0)
        address = f"openpi://127.0.0.1:{stand_in.port}?timeout_s={timeout_s}&connect_timeout_s=5"
        super().__init__(rig, ChunkRunner(embodied_env.load_policy(address, ARM), chunks, pacing="realtime"))


def check_fault(rig, stand_in, fault, record_property, chunks="wait"):
    """Inject `fault` while the robot moves, and assert what was published."""
    with RemoteEpisode(rig, stand_in, fault.metadata, chunks) as remote:
        reason = fault.reason if chunks == "wait" else fault.reason.partition(" is ")[0]  # the shape is another one
        for _ in range(ATTEMPTS):
            remote.episode.inject(lambda: stand_in.set(fault.name.removesuffix("_once"), fault.count))
            remote.run(MOST_STEPS if reason else 20)
            if not remote.has_stalled(reason):
                break
            remote.episode.check()
            stand_in.set("")
            remote.begin()
        check_loss(remote, reason, record_property) if fault.reason else check_continuation(remote)
        if chunks != "wait":
            stand_in.set("")
            remote.begin()
            check_continuation(remote)
    assert not (stand_in.folder / "pickle_was_executed").exists()


def check_loss(remote, reason, record_property):
    remote.run()
    remote.check(is_lost=True)
    assert remote.episode.ended.startswith(f"policy_lost:{reason}"), remote.episode.ended
    remote.episode.note(record_property)


def check_continuation(remote):
    remote.run(20)
    remote.check(is_lost=False)
    assert remote.episode.ended == ""
