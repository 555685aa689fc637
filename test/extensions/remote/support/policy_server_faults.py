"""The faults of a policy server, each with its expected end, and the stand-in server that has them.

docs/reference/policy_server_faults.md lists them. Two editions run them all: without ROS in lockstep, and on the robot
emulator with the published topic as evidence.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PROGRAM = Path(__file__).with_name("faulty_policy_server.py")
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault in the middle of an episode."""

    name: str  # of the stand-in, and of the row in the table
    reason: str  # start of the reason of `policy_lost`; empty: the episode continues
    problem: str = "malformed"  # as which it is counted; empty: not counted
    count: int | None = None  # number of answers with the fault
    metadata: str = "sound"  # of the server
    pause_s: float = 0.0  # between two steps


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
    Fault(name="unasked", reason="", problem="foreign", count=1, pause_s=0.02),
    Fault(name="id_of_arrays", reason="answer to another request", problem="foreign", metadata="announced"),
    Fault(name="empty_pings", reason=LATE, problem="late"),
    Fault(name="swapped", reason="answer to another request", problem="foreign", metadata="announced"),
    *_malformed(
        nan="output 'actions' is not finite",
        inf="output 'actions' is not finite",
        wrong_shape="output 'actions' is float64 [5] (expected float64 [6])",
        too_many_axes="message cannot be decoded",
        shape_beyond_data="message cannot be decoded",
        negative_shape="message cannot be decoded",
        empty_chunk="output 'actions' is float64 [0, 6]",
        ragged=NO_OUTPUT,
        text_dtype="output 'actions' is <U2 [6] (expected numbers [6])",
        object_dtype="message cannot be decoded",
        long_double="message cannot be decoded",
        text_of_no_length="message cannot be decoded",
        list_as_scalar="message cannot be decoded",
        many_values="message cannot be decoded: ValueError: 100000 exceeds max_array_len",
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
    Fault(name="huge_values", reason="", problem=""),
    Fault(name="closed_after_each_answer", reason="", problem=""),
    Fault(name="clock_jump_back", reason="", problem=""),
    Fault(name="clock_jump_ahead", reason="", problem=""),
    Fault(name="timing_of_nan", reason="", problem=""),
    Fault(name="timing_of_text", reason="", problem=""),
)

AT_LOAD = {  # reason of the refusal
    "slow_start": "no connection in time",
    "no_http": "handshake failed: InvalidMessage",
    "http_error": "server rejected WebSocket connection: HTTP 500",
    "metadata_missing": "no answer in time",
    "metadata_text": "ValueError: no GPU",
    "metadata_no_map": "metadata is list",
    "metadata_long": "metadata of 1048588 bytes",
    "metadata_huge": "invalid frame: PayloadTooBig",
    "metadata_and_answer": "answer to no request",
    "metadata_of_another_robot": "no output 'joint_pos' in the answer",
    "metadata_of_a_wrong_schema": "invalid announcement of a server",
}


class StandIn:
    def __init__(self, folder, rows=0):
        self.folder, self.rows, self.port = folder, rows, 0
        self.start()

    def start(self):
        """Start it, again on its port."""
        command = [sys.executable, str(PROGRAM), str(self.port), str(self.rows)]
        pipes: dict = {"stdin": subprocess.PIPE, "text": True}
        process: Any = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, **pipes)
        self.process, self.port = process, int(process.stdout.readline())

    def set(self, fault, count=None):
        """Set the fault of the answers that follow, or the metadata."""
        self.process.stdin.write(fault if count is None else f"{fault} {count}")
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == fault

    def signal(self, number):
        os.kill(self.process.pid, number)

    def freeze(self):
        self.signal(signal.SIGSTOP)
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.communicate()

    def restart(self):
        """Kill it when another one is ready on its port, which takes no time, unlike `kill` and `start`."""
        first = self.process
        self.start()
        first.kill()
        first.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def check_motion(values, commands, fault_at, limits, *, is_lost):
    """Assert that no wrong action was executed, and that from the fault on the robot braked to rest, if `is_lost`.

    Sound actions move the first joint forwards; wrong ones move all joints backwards. `values` were published for
    `commands`; the fault began after the first `fault_at` of them.
    """
    values = np.asarray(values)
    moved, speeds = np.diff(values, axis=0), np.array([command.report.velocity_si[0] for command in commands])
    assert (moved[:, 0] >= -ROUNDING).all()
    assert (np.abs(moved[:, 1:]) <= ROUNDING).all()
    assert (values >= limits.position_low).all()
    assert (values <= limits.position_high).all()
    assert (speeds <= limits.fastest[0] + ROUNDING).all()
    assert speeds[fault_at - 1] > 0
    after = speeds[fault_at - 1 :]
    if is_lost:
        assert (np.diff(after) <= ROUNDING).all()
        assert after[-1] == 0
        assert values[-1].tolist() == values[-2].tolist()
    else:
        assert after[-4:].max() > 0
