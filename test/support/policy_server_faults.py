"""The faults of a policy server, each with its expected end, and the stand-in server that has them.

docs/reference/policy_server_faults.md lists them. Two editions run them all: without ROS in lockstep, and on the robot
emulator with the published topic as evidence.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).with_name("faulty_policy_server.py")
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault in the middle of an episode."""

    name: str  # of the stand-in, and of the row in the table
    reason: str  # start of the reason of `policy_lost`; empty: the episode continues
    problem: str = "malformed"  # as which it is counted; empty: not counted
    count: int | None = None  # number of answers with the fault
    metadata: str = ""  # of the server


def _malformed(**reasons):
    return [Fault(name=name, reason=reason) for name, reason in reasons.items()]


NO_OUTPUT, LATE = "no output 'actions' in the answer", "no answer in time"

FAULTS = (
    Fault(name="stalled", reason=LATE, problem="late"),
    Fault(name="late", reason=LATE, problem="late"),
    Fault(name="drip", reason=LATE, problem="late"),
    Fault(name="truncated_frame", reason=LATE, problem="late"),
    Fault(name="endless_fragments", reason=LATE, problem="late"),
    Fault(name="pings", reason=LATE, problem="late"),
    Fault(name="late_once", reason="", problem="late", count=1),
    Fault(name="duplicated", reason="", problem="foreign", count=1),
    Fault(name="unasked", reason="", problem="foreign", count=1),
    Fault(name="swapped", reason="answer to another request", problem="foreign", metadata="announced"),
    *_malformed(
        nan="output 'actions' is not finite",
        inf="output 'actions' is not finite",
        wrong_shape="output 'actions' is float64 [5] (expected numbers [6])",
        too_many_axes="message cannot be decoded",
        shape_beyond_data="message cannot be decoded",
        negative_shape="message cannot be decoded",
        empty_chunk="output 'actions' is float64 [0, 6]",
        ragged=NO_OUTPUT,
        text_dtype="message cannot be decoded",
        object_dtype="message cannot be decoded",
        structured_dtype="message cannot be decoded",
        complex_dtype="message cannot be decoded",
        missing_output=NO_OUTPUT,
        other_output=NO_OUTPUT,
        no_map="answer is list (expected a map)",
        truncated_message="message cannot be decoded",
        trailing_bytes="message cannot be decoded",
        length_beyond_data="message cannot be decoded",
        deep_nesting="message cannot be decoded",
        pickle="message cannot be decoded",
        pickle_in_object_array="message cannot be decoded",
        empty="message cannot be decoded",
        huge_frame="invalid frame",
        compressed_bomb="invalid frame",
        reserved_opcode="invalid frame",
        no_frame="invalid frame",
    ),
    Fault(name="text_error", reason="RuntimeError: CUDA out of memory", problem="refused"),
    Fault(name="truncated_frame_then_closed", reason="connection", problem="lost"),
    Fault(name="half_closed", reason="connection closed", problem="lost"),
    Fault(name="reset", reason="connection", problem="lost"),
    Fault(name="closed_after_each_answer", reason="", problem=""),
    Fault(name="clock_jump_back", reason="", problem=""),
    Fault(name="clock_jump_ahead", reason="", problem=""),
    Fault(name="timing_of_nan", reason="", problem=""),
    Fault(name="timing_of_text", reason="", problem=""),
)

AT_LOAD = {
    "slow_start": "no connection in time",
    "no_http": "x",
    "http_error": "x",
    "metadata_missing": "no connection in time|no answer in time",
    "metadata_text": "ValueError: no GPU",
    "metadata_no_map": "metadata is list",
    "metadata_long": "metadata too long",
    "metadata_huge": "invalid frame",
    "metadata_of_another_robot": "x",
    "metadata_with_a_wrong_schema": "invalid announcement",
}


class StandIn:
    """The stand-in server, in a process of its own."""

    def __init__(self, folder):
        self.folder, self.port, self.process = folder, 0, None
        self.start()

    def start(self):
        """Start it, again on its port."""
        command, pipes = [sys.executable, str(PROGRAM), str(self.port)], {"stdin": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, **pipes)
        self.port = int(self.process.stdout.readline())

    def set(self, fault, count=None):
        """Set the fault of the answers that follow, or the metadata."""
        self.process.stdin.write(fault if count is None else f"{fault} {count}")
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == fault

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.close()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Evidence:
    """Positions that were published in an episode, and what they show."""

    def __init__(self, layout):
        self.limits = layout.limits

    def check(self, values, fault_at, *, is_lost):
        """Assert that no wrong action was executed, and that from the fault on the robot braked, if `is_lost`.

        Sound actions move the first joint forwards; the wrong one moves all joints backwards.
        """
        values = np.asarray(values)
        moved = np.diff(values, axis=0)
        assert (moved[:, 0] >= -ROUNDING).all()
        assert (np.abs(moved[:, 1:]) <= ROUNDING).all()
        assert (values >= self.limits.position_low).all()
        assert (values <= self.limits.position_high).all()
        assert moved[:fault_at, 0].max() > ROUNDING
        after = moved[fault_at:, 0]
        if is_lost:
            assert (np.diff(after) <= ROUNDING).all()
            assert after[-1] <= ROUNDING
        else:
            assert after[-1] > ROUNDING
