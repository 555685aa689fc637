"""The command line, with its table of verbs, parser, and the exit status of each error."""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from embodied_env import __version__
from embodied_env.cli import INTERRUPTED, READER_LEFT, SOUND, UNSOUND, WRONG_USAGE
from embodied_env.core.plugin_loading import load_extension
from embodied_env.core.terminal import PrintableFormatter, say
from embodied_env.errors import ContractError, EmbodiedEnvError, PolicyError, TaskError, UsageError, did_you_mean
from embodied_env.processes.signals import terminate

PROGRAM = "embodied-env"
_log = logging.getLogger("embodied_env")


class Verb(NamedTuple):
    """A verb, whose module has ``add_arguments(parser)`` and ``run(args) -> int``."""

    module: str
    help: str


VERBS: Mapping[str, Verb] = {
    "demo": Verb(
        "extensions.evaluation.demo_cli", "run a short evaluation of two policies over ROS 2 and print the results"
    ),
    "evaluate": Verb(
        "extensions.evaluation.evaluate_cli", "run and record episodes of policies, and print the results"
    ),
    "audit": Verb("extensions.audit.audit_cli", "validate a recorded run"),
    "calibrate": Verb(
        "extensions.calibration.calibrate_cli", "measure latencies with small motions and write a latency profile"
    ),
    "identify": Verb(
        "extensions.identification.identify_cli", "fit the simulator's parameters to recorded runs and write them"
    ),
    "report": Verb("extensions.report.report_cli", "write an HTML report of a recorded run"),
    "replay": Verb("extensions.replay.replay_cli", "re-run recorded actions and compare the transitions"),
    "compare": Verb("extensions.comparison.compare_cli", "compare recorded runs of one contract"),
    "view": Verb("extensions.viewers.view_cli", "show a recorded run in Rerun or Foxglove"),
    "export": Verb("extensions.export.export_cli", "export a run as JSON lines, Parquet, Minari or LeRobot"),
    "repair": Verb("cli.repair_cli", "make the files of runs that ended uncleanly readable for viewers"),
    "profile": Verb("extensions.calibration.profile_cli", "write the latency profile of a recorded run"),
    "sim": Verb("cli.sim_cli", "run the embedded simulator, or the robot emulator, as a ROS 2 node"),
    "relay": Verb("cli.relay_cli", "forward commands to the robot, and brake it when they stop"),
    "runner": Verb(
        "extensions.runner.runner_cli", "keep a policy loaded, and run it on request, as a managed ROS 2 node"
    ),
    "serve": Verb(
        "extensions.remote.serve_cli", "serve a policy to other programs and machines over openpi's protocol"
    ),
    "launch": Verb("cli.launch", "launch a simulator, Gazebo or a robot together with a policy or a training script"),
    "doctor": Verb("cli.doctor_cli", "check the requirements of a contract and print remedies"),
    "contract": Verb("cli.contract_cli", "validate, show, compare and render contracts (no ROS required)"),
    "policy": Verb("cli.policy_cli", "show, check and draft policy files"),
}
"""By name. The module is imported when the verb is used, and its `run` returns the exit status."""


_DESCRIPTION = "Gymnasium environment for ROS 2 robots in which every step is fully accounted for."
_EXIT_STATUS = (
    "Exit status: 0 sound; 1 the evidence is not sound or the run failed; 2 wrong usage or an invalid contract. "
    "Use VERB --help for the options of a verb."
)


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Appends the default to the help of options whose default is a value."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_value = (action.default or action.default == 0) and not isinstance(action.default, bool)
        return super()._get_help_string(action) if action.option_strings and is_value else action.help


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, so that wrong usage prints one line on stderr."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - of argparse
        super().__init__(formatter_class=_HelpFormatter, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - of argparse
        """Raise UsageError for a value that is not one of the choices, with the closest one."""
        if action.choices is not None and value not in action.choices:
            names = list(map(str, action.choices))
            what = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
            self.error(f"unknown {what} {value!r} (expected one of: {', '.join(names)}){did_you_mean(value, names)}")

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default that of this process, and return its exit status."""
    if logging.lastResort is not None:  # the handler of warnings without a configuration
        logging.lastResort.setFormatter(PrintableFormatter())
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # so that runs are closed and child processes ended
            signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in background jobs
        status = _run(_without_ros_args(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except EmbodiedEnvError as error:
        if _log.isEnabledFor(logging.DEBUG):
            traceback.print_exception(error)
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
    """Print `error` on stderr, after the traceback of a policy or task.

    The last output of a worker precedes the error too. The error is one line, except for a list: one line for each
    item.
    """
    if isinstance(error, PolicyError | TaskError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    for note in getattr(error, "__notes__", ()):
        say(note, file=sys.stderr)
    lines = str(error).splitlines()
    text = "".join(f"\n  {line}" if line.startswith("- ") else f" {line}" for line in lines)
    say(f"{PROGRAM}: error:{text}", file=sys.stderr)


def _without_ros_args(argv: Sequence[str]) -> list[str]:
    """Remove the arguments from ``--ros-args`` to ``--`` or the end, which rclpy reads itself."""
    kept, is_ros = [], False
    for argument in argv:
        if is_ros or argument == "--ros-args":
            is_ros = argument != "--"
        else:
            kept.append(argument)
    return kept


def _run(argv: list[str]) -> int:
    """Parse `argv`, importing only the module of its verb, and run it."""
    for argument in argv:
        if "\0" in argument:
            raise UsageError(f"invalid argument: {argument!r} (expected no NUL character)")
    parser = _Parser(prog=PROGRAM, description=_DESCRIPTION, epilog=_EXIT_STATUS)
    options: tuple[str, ...] = ()
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    named = next((argument for argument in argv if not argument.startswith("-")), None)
    for name, verb in VERBS.items():
        subparser = verbs.add_parser(name, help=verb.help, description=verb.help)
        if name == named:
            module = load_extension(f"embodied_env.{verb.module}:", needed_for=f"the verb {name!r}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
            options = tuple(subparser._option_string_actions)  # noqa: SLF001 - argparse has no other list of them
    _add_verbose(parser)
    if not argv:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    try:
        args, unknown = parser.parse_known_args(argv)
    except SystemExit:  # --help or --version
        return SOUND
    if unknown:
        guess = did_you_mean(unknown[0].partition("=")[0], options)
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{guess} (see {PROGRAM} {named} --help)")
    if "verbose" in args:
        _log_verbosely()
    return int(args.run(args))


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    help_ = "print log messages with their time, and the traceback of an error"
    parser.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=help_)
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in dict.fromkeys(action.choices.values()):
                _add_verbose(each)


def _log_verbosely() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _log.setLevel(logging.DEBUG)


def _reader_left() -> bool:
    """Return whether stdout is a broken pipe, and if so redirect it to /dev/null."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    broken = any(event & select.POLLERR for _, event in poll.poll(0))
    if broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return broken
