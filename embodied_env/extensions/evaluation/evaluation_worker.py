"""A worker process that reads its job from its input.

It is run by ``python -m embodied_env.extensions.evaluation.evaluation_worker``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_env.errors import EmbodiedEnvError, PolicyError, TaskError
from embodied_env.extensions.evaluation.episode_runner import EpisodeRunner, EvaluationJob
from embodied_env.extensions.evaluation.local_workers import GRACE_S
from embodied_env.processes.child_process import read_first_line, watch_parent
from embodied_env.processes.signals import deferred_signals, terminate


def main() -> int:
    """Run the episodes that the parent sends until it ends or closes the socket."""
    job = json.loads(read_first_line())
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM), grace_s=GRACE_S)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(job["address"])
        _send(connection, {"worker": job["number"], "pid": os.getpid()})
        try:
            _serve(job, connection)
        except EmbodiedEnvError as error:
            if isinstance(error, PolicyError | TaskError) and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)  # the parent attaches the end of stderr
            _send(connection, {"failed": type(error).__name__, "message": str(error)})
            return 1
    return 0


def _serve(job: Mapping[str, Any], connection: socket.socket) -> None:
    """Run each received trial, and create the run directory of a policy with its first one."""
    with contextlib.ExitStack() as stack, connection.makefile("r", encoding="utf-8") as lines:
        try:
            runner: EpisodeRunner | None = None
            path: Path | None = None
            for line in lines:
                trial = json.loads(line)["trial"]
                with deferred_signals():  # so that a created run is closed
                    if runner is None:
                        parsed = EvaluationJob.from_json(job)
                        runner = stack.enter_context(EpisodeRunner(parsed, parsed.folders(Path(job["out"]))))
                    before, path = path, runner.open(trial)
                if path != before:
                    _send(connection, {"ready": str(path)})
                runner.run(trial)
                _send(connection, {"ended": trial})
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # closing must not be interrupted


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
