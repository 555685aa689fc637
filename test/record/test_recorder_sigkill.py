"""A recording program killed at random moments has the rows and images that it reported to another process."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from mcap.reader import make_reader

from embodied_env.record import read_run, repair_run

pytestmark = pytest.mark.realtime

PROGRAM = """
import hashlib, os, sys, time
import gymnasium, numpy as np
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions

class Filmed(gymnasium.ObservationWrapper):
    '''A camera whose images differ, some of which can be compressed.'''
    rng = np.random.default_rng(0)

    def observation(self, observation):
        image = self.rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
        image[:, : self.rng.integers(320)] = 7
        return {**observation, "camera_image": image}

def tell(rows, env, observation, ended):
    sha256 = hashlib.sha256(observation["camera_image"].tobytes()).hexdigest()
    os.write(1, b"%d %d %d %d %s\\n" % (rows, env.rows_flushed, time.monotonic_ns(), ended, sha256.encode()))

def record(folder, pacing, compression):
    world = EmbodiedEnv("door_open", backend="fake", free_running=pacing == "realtime")
    env = RecordTransitions(gymnasium.wrappers.TimeLimit(Filmed(world), 25), folder, compression=compression)
    rows = 0
    while True:
        observation, _ = env.reset(seed=rows)
        rows += 1
        tell(rows, env, observation, pacing == "lockstep")
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
            ended = terminated or truncated
            rows += 1
            tell(rows, env, observation, ended and pacing == "lockstep")

for line in sys.stdin:  # a program that is started once, and forked for each run
    if (pid := os.fork()) == 0:
        os.write(1, b"pid %d\\n" % os.getpid())
        record(*line.split())
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


@pytest.fixture(scope="module")
def programs():
    """Start the program, which makes a run of the folder, pacing and compression in each line on its standard input."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    yield process
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def kill_one(programs, folder, seed, longest_s):
    """Record, kill at a random moment, and return the run directory, what was reported, and the time of the kill."""
    moment = random.Random(seed)
    pacing, compression = ("lockstep", "realtime")[seed % 2], ("zstd", "lz4", "none")[seed % 3]
    programs.stdin.write(f"{folder} {pacing} {compression}\n")
    programs.stdin.flush()
    pid = int(programs.stdout.readline().removeprefix("pid "))
    lines = [programs.stdout.readline()]
    end = time.monotonic() + moment.uniform(0.0, longest_s)
    while time.monotonic() < end:
        lines.append(programs.stdout.readline())
    if moment.random() < 0.5:  # at any time between two steps too
        time.sleep(moment.uniform(0.0, 0.02))
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    lines += iter(programs.stdout.readline, "dead\n")
    (path,) = folder.iterdir()
    return path, [line.split() for line in lines if line.endswith("\n")], killed_ns


def check(path, printed, killed_ns):
    """Compare the rows of a killed run with the reported ones, and return how many of these were lost."""
    run = read_run(path)
    rows = list(run.rows())
    assert "rows of the last 0.1 s before that may be missing" in run.problem
    assert run.chain.problem == ""
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= max(int(flushed) for _, flushed, *_ in printed)
    for count, flushed, printed_ns, must_be_flushed, sha256 in printed:
        number = int(count) - 1
        assert must_be_flushed == "0" or count == flushed
        if number >= len(rows):
            assert killed_ns - int(printed_ns) < 2e9  # 0.1 s, and what a busy machine adds
            continue
        image = run.array(rows[number]["observation"]["camera_image"])
        assert hashlib.sha256(image.tobytes()).hexdigest() == sha256
    return max(0, int(printed[-1][0]) - len(rows))


def check_repaired(path):
    """Check that a repair keeps all rows, and that an indexed reader finds them by time and topic."""
    rows = list(read_run(path).rows())
    repair_run(path)
    assert list(read_run(path).rows()) == rows
    if not rows:
        return
    with (path / "transitions.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        counts = Counter(channel.topic for _, channel, _ in reader.iter_messages())
        assert counts["transition"] + counts["reset"] == len(rows)
        half_ns = rows[len(rows) // 2]["log_time_ns"]
        later = [m.data for *_, m in reader.iter_messages(topics=["transition", "reset"], starting_at=half_ns)]
    assert [json.loads(data) for data in later] == [row for row in rows if row["log_time_ns"] >= half_ns]


def kill_many(programs, folder, seeds, longest_s):
    for seed in seeds:
        path, printed, killed_ns = kill_one(programs, folder / str(seed), seed, longest_s)
        check(path, printed, killed_ns)
        check_repaired(path)
        shutil.rmtree(folder / str(seed))


def test_rows_and_images_of_a_killed_recorder_are_those_that_it_printed(programs, tmp_path):
    kill_many(programs, tmp_path, range(4), 0.3)  # in both pacings, with each compression


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_200_killed_recorders(programs, tmp_path, first):
    kill_many(programs, tmp_path, range(first, first + 10), 0.6)
