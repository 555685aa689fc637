"""Episodes of workers that end or hang are repeated, and each worker has its own ROS domain."""

from types import SimpleNamespace
from typing import Any

import pytest

from embodied_env.errors import BackendError, BackendNotReadyError, PolicyError
from embodied_env.extensions.evaluation.evaluation_engine import MOST_ATTEMPTS, EpisodeScheduler, domain_ids
from embodied_env.extensions.evaluation.local_workers import SHORT_GRACE_S, LocalWorker


class FakePool:
    """A pool that only records calls, and each of whose workers ends with the same output."""

    def __init__(self):
        self.started, self.reaped = [], []

    def start(self, number, domain_id):
        self.started.append((number, domain_id))

    def reap(self, worker, *, grace_s=0.0):
        self.reaped.append(worker)
        return "killed by signal 9"

    def idle(self):
        return []


def worker_of(number):
    child: Any = SimpleNamespace(note_shared_memory=lambda: None)
    return LocalWorker(number=number, child=child)


@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return EpisodeScheduler(trials=1, workers=1, ended=lambda _: None, limit_s=60.0)


def test_episode_that_kills_every_worker_raises(scheduler):
    pool = FakePool()
    for _ in range(MOST_ATTEMPTS - 1):
        worker = worker_of(0)
        scheduler._handle(pool, worker, {"worker": 0})
        scheduler._handle(pool, worker, None)
    worker = worker_of(0)
    scheduler._handle(pool, worker, {"worker": 0})
    with pytest.raises(BackendError, match=r"episode 0 failed: .* in 3 attempts: killed by signal 9"):
        scheduler._handle(pool, worker, None)
    assert pool.started == [(0, 8), (0, 8)]


def test_workers_that_never_start_raise(scheduler):
    pool = FakePool()
    for _ in range(MOST_ATTEMPTS - 1):
        scheduler._handle(pool, worker_of(0), None)
    with pytest.raises(BackendNotReadyError, match="in 3 attempts"):
        scheduler._handle(pool, worker_of(0), None)


def test_worker_error_is_raised_with_its_output_as_note(scheduler):
    worker = worker_of(0)
    with pytest.raises(PolicyError, match="out of ideas") as raised:
        scheduler._handle(FakePool(), worker, {"failed": "PolicyError", "message": "out of ideas"})
    assert "killed by signal 9" in raised.value.__notes__[0]


class HungPool(FakePool):
    """A pool whose workers get their episodes immediately, of which those in `hangs` never end.

    Each `receive` takes 10 s.
    """

    def __init__(self, hangs):
        super().__init__()
        self.hangs, self.now_s, self.workers, self.is_shut_down = hangs, 0.0, [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, number, domain_id):
        super().start(number, domain_id)
        self.workers.append(worker_of(number))
        self.workers[-1].messages = [{"worker": number}, {"ready": f"run_{len(self.started)}"}]

    def busy(self):
        return [worker for worker in self.workers if worker.trial is not None]

    def reap(self, worker, *, grace_s=0.0):
        self.workers.remove(worker)
        self.graces = [*getattr(self, "graces", []), grace_s]
        return super().reap(worker)

    def receive(self):
        self.now_s += 10.0
        for worker in list(self.workers):
            if worker.messages:
                yield worker, worker.messages.pop(0)
            elif worker.trial is not None and worker.trial not in self.hangs:
                yield worker, {"ended": worker.trial}

    def shutdown(self):
        self.is_shut_down = True


def finished(monkeypatch, pool, *, episodes=3):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    run = EpisodeScheduler(episodes, 1, lambda _: None, limit_s=60.0, now_s=lambda: pool.now_s)
    run.run(pool)
    return run


def test_hung_worker_is_replaced_until_last_attempt(monkeypatch):
    pool = HungPool(hangs={1})
    run = finished(monkeypatch, pool)
    assert sorted(run.where) == [0, 2]
    assert run.abandoned == {1}
    assert len(pool.reaped) == MOST_ATTEMPTS
    assert set(pool.graces) == {SHORT_GRACE_S}
    assert pool.is_shut_down
    assert "episode 1" in run.not_evaluated(run.abandoned)
    assert len(run.losses) == MOST_ATTEMPTS


def test_episode_time_limit_starts_when_environment_is_ready(monkeypatch):
    pool = HungPool(hangs={0})
    finished(monkeypatch, pool, episodes=1)
    assert pool.now_s == MOST_ATTEMPTS * (20.0 + 60.0 + 10.0)  # two messages, the limit, and the poll that detects it


def test_timely_workers_are_not_replaced(monkeypatch):
    pool = HungPool(hangs=set())
    assert finished(monkeypatch, pool, episodes=40).abandoned == set()
    assert pool.reaped == []


@pytest.mark.parametrize(("count", "own"), [(1, 0), (4, 0), (4, 99), (101, 50), (3, 230)])
def test_worker_domains_are_distinct_and_exclude_own(count, own):
    found = domain_ids(count, own)
    assert len(set(found)) == len(found) == count
    assert own not in found
    assert all(0 <= number < 102 for number in found)
