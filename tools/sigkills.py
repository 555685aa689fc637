"""SIGKILL while a run is recorded: is every acknowledged row there? By hand; the figures go to docs/long_run.md.

    python tools/sigkills.py [--kills N] [--mujoco-ros N] [--workers N] [--seed S]

Each victim records a run and writes to a pipe: ``w N`` when its thread is about to write row N, and ``a N F E`` when
`step` (or `reset`) has returned N rows in all, of which F are flushed; E is 1 where all of them must be: behind a
reset, the first step, and the end of an episode. The parent kills it at a random moment of its episode, or (every other
time) at a random moment within half a millisecond after a ``w``. Then the run is read back: every flushed row, and all
but the last 64 that were returned, in order, with its images by their hash. A victim steps `door_open`, which has
cameras, over `mujoco_ros`; or in the `fake` world, as fast as it can. Exit status 1: a row was lost that was promised,
or a run was not found unclean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import embodied_env
from embodied_env.record.arrays import references
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.writer_thread import MAX_JOBS_IN_LOCKSTEP

START_S = 180.0  # until the first row
EPISODE_S = 1.5  # within which the kill comes


def victim(backend, domain, folder, out):
    """Record until it is killed."""
    os.environ |= {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    options = {"spawn": True, "record_messages": True} if backend == "mujoco_ros" else {}
    env = embodied_env.make("door_open", backend=backend, record=folder, **options)
    write = env._run.write_row  # noqa: SLF001 - a spy: of messages, images and the row itself

    def announced(topic, text, arrays, **options):
        os.write(out, b"w %d\n" % options["number"])
        write(topic, text, arrays, **options)

    env._run.write_row = announced  # noqa: SLF001
    rows = 0
    while True:
        env.reset(seed=rows)
        rows += 1
        os.write(out, b"a %d %d 1\n" % (rows, env.rows_flushed))
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
            ended = terminated or truncated
            rows += 1
            os.write(out, b"a %d %d %d\n" % (rows, env.rows_flushed, ended or rows == 2))


class Kill:
    """One victim, from its start to the recovery of its run."""

    def __init__(self, number, backend, folder, chance):
        self.number, self.backend, self.chance = number, backend, chance
        self.folder = folder / f"{number:03d}"
        self.aims_at_write = number % 2 == 0
        self.announced, self.returned, self.flushed = -1, 0, 0
        self.behind, self.most_behind = 0, 0  # rows not flushed where all must be, and at any time

    def run(self):
        """Start it, kill it, read its run."""
        out_read, out_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_victim(self, out_write)
        os.close(out_write)
        with os.fdopen(out_read, "rb") as pipe:
            try:
                self._hunt(pid, pipe)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for line in pipe:
                self._hear(line)
        os.waitpid(pid, 0)
        return self._judge()

    def _hunt(self, pid, pipe):
        watchdog = threading.Timer(START_S, os.kill, (pid, signal.SIGKILL))
        watchdog.start()
        while not self.returned:
            line = pipe.readline()
            if not line:
                raise RuntimeError(f"{self.folder}: the victim died before its first row")
            self._hear(line)
        watchdog.cancel()
        end = time.monotonic() + self.chance.uniform(0.0, EPISODE_S)
        while time.monotonic() < end or (self.aims_at_write and not line.startswith(b"w")):
            line = pipe.readline()
            self._hear(line)
        if self.aims_at_write:
            pause_end = time.perf_counter_ns() + self.chance.randrange(500_000)
            while time.perf_counter_ns() < pause_end:
                pass
        os.kill(pid, signal.SIGKILL)

    def _hear(self, line):
        if not line.endswith(b"\n"):
            return
        word, *numbers = line.split()
        if word == b"w":
            self.announced = int(numbers[0])
            return
        self.returned, self.flushed, must_be_all = map(int, numbers)
        waiting = self.returned - self.flushed
        self.behind += waiting if must_be_all else 0
        self.most_behind = max(self.most_behind, waiting)

    def _judge(self):
        (path,) = self.folder.iterdir()
        run = embodied_env.read_run(path)
        images = 0
        rows = []
        for row in run.rows():
            rows.append(row["row"])
            for _, reference in references(row):
                run.array(reference)
                images += 1
        messages = sum(1 for _ in run.messages())
        size = (path / "transitions.mcap").stat().st_size
        found = {
            "backend": self.backend,
            "path": str(path),
            "returned": self.returned,
            "flushed": self.flushed,
            "most_behind": self.most_behind,
            "read": len(rows),
            "in_write": self.announced >= self.flushed,
            "torn": size > _whole_bytes(path / "transitions.mcap"),
            "images": images,
            "messages": messages,
            "sound": rows == list(range(len(rows)))
            and len(rows) >= self.flushed >= self.returned - MAX_JOBS_IN_LOCKSTEP
            and not self.behind,
            "found_unclean": not run.clean and "its writer was stopped" in run.problem,
        }
        if found["sound"] and found["found_unclean"]:
            shutil.rmtree(self.folder)
        return found


def _whole_bytes(log):
    """Return where the last whole record of a log ends."""
    return max((end for _, _, end in McapRecords(log)), default=0)


def _be_victim(kill, out):
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        kill.folder.mkdir(parents=True)
        victim(kill.backend, 101 + kill.number % 100, kill.folder, out)
    finally:
        os._exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--mujoco-ros", type=int, default=None, help="of these (default: half)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    over_ros = args.kills // 2 if args.mujoco_ros is None else args.mujoco_ros
    found, failures = [], []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        kills = [
            Kill(n, "mujoco_ros" if n < over_ros else "fake", Path(folder), random.Random(f"{args.seed}/{n}"))  # noqa: S311 - chance
            for n in range(args.kills)
        ]
        for kill, done in [(kill, pool.submit(kill.run)) for kill in kills]:
            try:
                row = done.result()
            except RuntimeError as error:
                failures.append(str(error))
                print(f"{kill.number}: {error}", file=sys.stderr, flush=True)
                continue
            found.append(row)
            print(json.dumps(row), flush=True)
    print(json.dumps(summary(found, failures), indent=2))
    return 0 if found and all(row["sound"] and row["found_unclean"] for row in found) else 1


def summary(found, failures):
    count = Counter()
    for row in found:
        for key in ("in_write", "torn", "sound", "found_unclean"):
            count[f"{row['backend']}: {key}"] += row[key]
        count[f"{row['backend']}: kills"] += 1
        for key in ("returned", "flushed", "read", "images", "messages"):
            count[f"{row['backend']}: {key}"] += row[key]
    lost = sum(max(0, row["flushed"] - row["read"]) for row in found)
    waited = max((row["most_behind"] for row in found), default=0)
    totals = {"kills": len(found), "flushed rows lost": lost, "most rows that waited": waited, "no victim": failures}
    return {**totals, **dict(sorted(count.items()))}


if __name__ == "__main__":
    sys.exit(main())
