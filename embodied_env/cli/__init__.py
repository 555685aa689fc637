"""The command line ``embodied-env``: one verb per module, imported only when it is asked for.

Exit status::

    0    sound
    1    the evidence is not sound, or the run failed
    2    wrong usage: of the command line, or a contract that is wrong
    130  interrupted from the keyboard
    143  asked to end by SIGTERM
    141  the reader of the output left before the end

An error is one line on stderr, ``embodied-env: error: ...``; only a fault of the program itself has a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from embodied_env import __version__
from embodied_env.core.process.signals import terminate
from embodied_env.core.terminal import say
from embodied_env.errors import ContractError, EmbodiedEnvError, PolicyError, UsageError

SOUND = 0
UNSOUND = 1
WRONG_USAGE = 2
INTERRUPTED = 130
READER_LEFT = 141

PROGRAM = "embodied-env"


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb: the line that ``--help`` shows, and the module that does it.

    The module has ``HELP`` (the same line), ``add_arguments(parser)`` and ``run(args) -> int`` (the exit status).
    """

    module: str
    help: str


VERBS: Mapping[str, Verb] = {
    "demo": Verb(module="embodied_env.cli.demo", help="run a few episodes and show what each step accounts for"),
    "evaluate": Verb(module="embodied_env.cli.evaluate", help="run a policy for some episodes and record them"),
    "audit": Verb(module="embodied_env.cli.audit", help="check that a recorded run keeps its word"),
    "calibrate": Verb(module="embodied_env.cli.calibrate", help="move gently, and measure latencies into a file"),
    "report": Verb(module="embodied_env.cli.report", help="write one page that tells a recorded run, for people"),
    "replay": Verb(
        module="embodied_env.cli.replay",
        help="play a run back: are its transitions still the same?",
    ),
    "compare": Verb(
        module="embodied_env.cli.compare",
        help="set two runs of one contract side by side",
    ),
    "export": Verb(module="embodied_env.cli.export", help="export a run as JSON lines, Parquet, Minari or LeRobot"),
    "profile": Verb(module="embodied_env.cli.profile", help="write the latencies of a recorded run into a file"),
    "sim": Verb(module="embodied_env.cli.sim", help="run the embedded simulator in a process of its own"),
    "relay": Verb(module="embodied_env.cli.relay", help="own the actuator topics, and brake when commands stop"),
    "launch": Verb(
        module="embodied_env.cli.launch",
        help="start the processes of one use: a simulator, Gazebo or a robot, and what runs on it",
    ),
    "doctor": Verb(module="embodied_env.cli.doctor", help="check what a contract needs, and say what to do about it"),
    "contract": Verb(module="embodied_env.cli.contract", help="check, show and compare contracts, without ROS"),
}


def check_run_directory(path: str) -> None:
    """Raise UsageError unless there is a directory."""
    if not path or not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise UsageError(f"{path} is not there; allowed: a run directory")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: one line, and the place where help is found."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of this process) and return its exit status."""
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # so that runs are closed and children ended
            signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell's background ignores it
        status = _run(_without_ros_args(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except EmbodiedEnvError as error:
        print_error(error)
        return WRONG_USAGE if isinstance(error, (ContractError, UsageError)) else UNSOUND
    except KeyboardInterrupt:
        say(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        if not _reader_left():
            raise
        return READER_LEFT
    return status


def print_error(error: EmbodiedEnvError) -> None:
    """Print `error` as one line on stderr, below the traceback of a policy and the last output of a worker."""
    if isinstance(error, PolicyError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    for note in getattr(error, "__notes__", ()):
        say(note, file=sys.stderr)
    say(f"{PROGRAM}: error: {' '.join(str(error).splitlines())}", file=sys.stderr)


def _without_ros_args(argv: Sequence[str]) -> list[str]:
    """Leave out what stands from ``--ros-args`` to ``--`` or the end: launch appends it, and rclpy reads it itself."""
    kept, is_ros = [], False
    for argument in argv:
        if is_ros or argument == "--ros-args":
            is_ros = argument != "--"
        else:
            kept.append(argument)
    return kept


def _run(argv: list[str]) -> int:
    for argument in argv:
        if "\0" in argument:
            raise UsageError(f"invalid argument: {argument!r} (expected no NUL character)")
    parser = _parser(argv)
    try:
        args = parser.parse_args(argv)
    except SystemExit:  # --help and --version have printed what was asked for
        return SOUND
    status: int = args.run(args)
    return status


def _parser(argv: list[str]) -> _Parser:
    """Build the parser, importing only the verb that `argv` names."""
    parser = _Parser(prog=PROGRAM, description="A Gymnasium environment for ROS 2 robots: the command line.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    named = next((argument for argument in argv if not argument.startswith("-")), None)
    for name, verb in VERBS.items():
        subparser = verbs.add_parser(name, help=verb.help, description=verb.help)
        if name == named:
            module = importlib.import_module(verb.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _reader_left() -> bool:
    """Say whether stdout is the pipe that broke; if so, silence it for the rest of the process."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    broken = any(event & select.POLLERR for _, event in poll.poll(0))
    if broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return broken
