"""At a fault of a policy server in lockstep the robot brakes, and no action of a faulty answer is executed.

The page docs/reference/policy_server_faults.md lists them; `test_remote_model_faults_ros` has them on the robot emulator.
"""

import re
import signal
import time
from typing import Any

import policy_server_faults
import pytest
from policy_server_faults import AT_LOAD, FAULTS, LATE, StandIn, check_motion
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction
from embodied_env.errors import UsageError
from embodied_env.policies.chunk_execution import ChunkRunner

pytest.importorskip("websockets", reason="needs websockets")

MISSED, SHORT_S, PATIENCE_S = 3, 0.06, 20.0
ARM = changed_contract("arm_reach", {"policy.max_missed": MISSED, "episode.horizon_steps": 100})
LIMITS = ActionLayout(ARM).limits


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    with StandIn(tmp_path_factory.mktemp("server")) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def env():
    with embodied_env.make(ARM, backend="fake") as env:
        yield env


@pytest.fixture(autouse=True)
def sound(stand_in):
    """Begin with a sound server."""
    stand_in.set("sound")
    stand_in.set("")


@pytest.fixture
def mortal(tmp_path):
    """Return a stand-in of the test's own."""
    with StandIn(tmp_path) as stand_in:
        yield stand_in


class Episode:
    """An episode with the policy of the stand-in, whose prompt answers are in time on a busy machine."""

    def __init__(self, env, stand_in):
        address = f"openpi://127.0.0.1:{stand_in.port}?timeout_s={PATIENCE_S}&connect_timeout_s={PATIENCE_S}"
        self.env, self.stand_in, self.policy = env, stand_in, embodied_env.load_policy(address, ARM)
        self.runner, self.backend = ChunkRunner(self.policy), env.unwrapped.stepper.backend
        self.observation, _ = env.reset(seed=1)
        self.runner.reset(seed=0, episode_index=0)
        self.first, self.missed, self.ended, self.account = len(self.backend.sent), [], "", {}

    def set_timeout(self, timeout_s):
        """Set the time limit of the inferences that follow."""
        policy: Any = self.policy
        policy.model._timeout_s = timeout_s

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.policy.close()

    @property
    def published(self):
        return self.backend.sent[self.first :]

    def check(self, fault_at, *, is_lost):
        check_motion([each.values for each in self.published], self.published, fault_at, LIMITS, is_lost=is_lost)

    def run(self, steps, *, pause_s=0.0):
        """Take at most `steps` steps, and return the number of those with an action."""
        acted = 0
        for _ in range(steps):
            if self.ended:
                break
            time.sleep(pause_s)
            action = self.runner(self.observation)
            self.account = self.runner.take_accounts()["inference"]
            if isinstance(action, NoAction):
                self.missed.append(action.reason)
            else:
                acted += 1
            self.observation, *_, info = self.env.step(action)
            self.ended = info["end_reason"]
        return acted

    def move(self):
        """Move, although an answer may be late on a busy machine."""
        for _ in range(10):
            if self.run(1) and self.run(3) == 3:
                return len(self.published)
        raise AssertionError(self.missed)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_of_a_server(env, stand_in, fault):
    stand_in.set(fault.metadata)
    with Episode(env, stand_in) as episode:
        fault_at = episode.move()
        if fault.problem == "late":
            episode.set_timeout(SHORT_S if fault.reason == LATE else 0.4)
        stand_in.set(fault.name.removesuffix("_once"), fault.count)
        is_lost = bool(fault.reason)
        acted = episode.run(MISSED if is_lost else 1, pause_s=fault.pause_s)
        if not is_lost:
            episode.set_timeout(PATIENCE_S)
            acted += episode.run(7, pause_s=fault.pause_s)
        episode.check(fault_at, is_lost=is_lost)
        if is_lost:
            assert acted == 0
            assert episode.ended.startswith(f"policy_lost:{fault.reason}")
        else:
            assert episode.ended == ""
            assert acted >= 6
        if fault.problem:
            assert episode.account[fault.problem] >= 1
    assert not (stand_in.folder / "pickle_was_executed").exists()


def test_frozen_server(env, stand_in):
    with Episode(env, stand_in) as episode:
        fault_at = episode.move()
        episode.set_timeout(SHORT_S)
        stand_in.freeze()
        try:
            assert episode.run(MISSED) == 0
        finally:
            stand_in.signal(signal.SIGCONT)
        episode.check(fault_at, is_lost=True)
        assert episode.ended.startswith("policy_lost:no connection in time")


def test_killed_and_restarted_server(env, mortal):
    with Episode(env, mortal) as episode:
        fault_at = episode.move()
        mortal.kill()
        assert episode.run(1) == 0
        mortal.start()
        assert episode.run(8) >= 6
        episode.check(fault_at, is_lost=False)
        fault_at = len(episode.published)
        mortal.kill()
        assert episode.run(MISSED) == 0
        episode.check(fault_at, is_lost=True)
        assert episode.ended.startswith("policy_lost:connection refused")
    with pytest.raises(UsageError, match="connection refused"):
        embodied_env.load_policy(f"openpi://127.0.0.1:{mortal.port}?connect_timeout_s=0.2", ARM)


def test_another_model_after_a_reconnection(env, stand_in):
    with Episode(env, stand_in) as episode:
        fault_at = episode.move()
        stand_in.set("another_model")
        stand_in.set("reset")
        assert episode.run(MISSED) == 0
        episode.check(fault_at, is_lost=True)
        assert episode.ended.startswith("policy_lost:server restarted with other metadata")


@pytest.mark.parametrize("name", AT_LOAD)
def test_fault_at_load(stand_in, name):
    stand_in.set(name)
    for timeout_s in (0.2, 2.0, PATIENCE_S):  # again, since a busy machine may answer too late
        with pytest.raises(UsageError) as caught:
            embodied_env.load_policy(f"openpi://127.0.0.1:{stand_in.port}?connect_timeout_s={timeout_s}", ARM)
        if re.search(AT_LOAD[name], str(caught.value)):
            break
    assert re.search(AT_LOAD[name], str(caught.value))


def test_every_fault_is_in_the_table():
    page = (policy_server_faults.PROGRAM.parents[4] / "docs" / "reference" / "policy_server_faults.md").read_text()
    rows = {
        name for cell in re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE) for name in re.findall(r"\w+", cell)
    }
    harness = {"killed", "frozen", "restarted", "another_model", "port_closed"}
    assert rows == {fault.name for fault in FAULTS} | set(AT_LOAD) | harness
