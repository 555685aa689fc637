"""A worker of the local engine: ``python -m embodied_env.evaluation.worker``, with its job on standard input."""

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

from embodied_env.core.process.child import first_line, watch_parent
from embodied_env.core.process.signals import deferred_signals, terminate
from embodied_env.errors import EmbodiedEnvError, PolicyError
from embodied_env.evaluation.episodes import EpisodeRunner, EvaluationJob
from embodied_env.evaluation.local_workers import GRACE_S


def main() -> int:
    """Run the episodes that the parent names, and close the run when it names no more; also when it is gone."""
    said = json.loads(first_line())
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM), grace_s=GRACE_S)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(said["address"])
        _say(line, {"worker": said["number"], "pid": os.getpid()})
        try:
            _serve(said, line)
        except EmbodiedEnvError as error:
            if isinstance(error, PolicyError):
                traceback.print_exception(error.__cause__)  # the caller attaches the end of stderr to the error
            _say(line, {"failed": type(error).__name__, "message": str(error)})
            return 1
    return 0


def _serve(said: Mapping[str, Any], line: socket.socket) -> None:
    """Run each episode that is named; a worker that is given none makes no run."""
    with contextlib.ExitStack() as stack, line.makefile("r", encoding="utf-8") as asked:
        try:
            episodes: EpisodeRunner | None = None
            for word in asked:
                if episodes is None:
                    with deferred_signals():  # a run that there is will be closed
                        episodes = stack.enter_context(EpisodeRunner(EvaluationJob.from_json(said), Path(said["out"])))
                    _say(line, {"ready": str(episodes.path)})
                episode = json.loads(word)["episode"]
                episodes.run(episode)
                _say(line, {"ended": episode})
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already: nothing may break the closing


def _say(line: socket.socket, word: Mapping[str, Any]) -> None:
    line.sendall(json.dumps(word).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
