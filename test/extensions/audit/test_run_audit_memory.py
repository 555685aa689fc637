"""The memory of the audit does not grow with the run, since it streams rows."""

import itertools
import json
import subprocess
import sys

import pytest
import strategies
from row_logs import RowLog
from run_files import record, seal, unlinked

from embodied_env.record import read_run
from embodied_env.record.row_types import RESET
from embodied_env.record.summary import Summary

HOUR_NS = 3600 * 1_000_000_000


@pytest.fixture(scope="module")
def episode(tmp_path_factory):
    """Record one episode that ends by its time limit, and return its run directory."""
    document = strategies.changed("episode.horizon_steps", 50)
    return record(tmp_path_factory.mktemp("episode"), [[None] * 50], strategies.parse(document))


def repeated(path, transitions):
    """Yield the rows of an episode repeatedly, each time an hour later, for at least `transitions` steps."""
    texts = [json.dumps(row) for row in read_run(path).rows()]
    count, numbers = 0, itertools.count()
    for index in itertools.count():
        for row in map(json.loads, texts):
            row["row"], row["info"]["episode_index"] = next(numbers), index
            if row["schema"] == RESET:
                row["seed"] = row["seed"] if index == 0 else None
            else:
                count += 1
                _later(row["inner"], index * HOUR_NS)
            yield row
        if count >= transitions:
            return


def _later(inner, ns):
    inner["stamps_ns"] = {name: stamp + ns for name, stamp in inner["stamps_ns"].items()}
    for sensor in inner["sensors"].values():
        sensor["arrival_ns"] += ns


def write_run(folder, path, transitions):
    """Write a run directory with at least `transitions` steps, like a recorded one."""
    folder.mkdir()
    writer, summary = RowLog(folder / "transitions.mcap"), Summary()
    writer.rows_per_chunk = 20  # each chunk of a log takes 0.7 kB
    for row in map(unlinked, repeated(path, transitions)):
        writer.write("reset" if row["schema"] == RESET else "transition", row, log_time_ns=0)
        summary.add(row)
    writer.close()
    manifest = json.loads((path / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seal(folder)
    first = json.loads((path / "first_transition.json").read_text())
    (folder / "first_transition.json").write_text(json.dumps(unlinked(first)))
    made = summary.as_json(manifest["contract"]["fingerprint"])
    (folder / "summary.json").write_text(json.dumps(made))
    return folder


AUDIT = """
import sys
from embodied_env.extensions.audit import audit_run
report = audit_run(sys.argv[1])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(report.transitions, len(report.problems), status["VmHWM"].split()[0])
print(*report.problems, file=sys.stderr, sep="\\n")
"""


def audited(path):
    """Audit in a separate process, and return transitions, problems, and its peak resident memory, kB.

    This is not ``ru_maxrss``, which includes the memory of the parent at the fork.
    """
    done = subprocess.run([sys.executable, "-c", AUDIT, str(path)], capture_output=True, text=True, check=True)
    print(path.name, done.stdout, done.stderr)
    return [int(number) for number in done.stdout.split()]


@pytest.mark.long  # longer than five minutes: pytest prints stacks meanwhile and continues
def test_auditing_100000_transitions_uses_bounded_memory(episode, tmp_path):
    *few, small_kb = audited(write_run(tmp_path / "small", episode, 1_000))
    *many, large_kb = audited(write_run(tmp_path / "large", episode, 100_000))
    assert (few, many) == ([1_000, 0], [100_000, 0])
    assert large_kb < small_kb + 16_000
