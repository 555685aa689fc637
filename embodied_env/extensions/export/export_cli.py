"""The command ``embodied-env export``, which writes a run in another format."""

from __future__ import annotations

import argparse
import json

from embodied_env.cli import SOUND
from embodied_env.cli.verb_arguments import add_json, add_run_directory
from embodied_env.core.terminal import ProgressBar, say
from embodied_env.plugins.plugin_lookup import plugin_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    option = parser.add_argument
    formats = ", ".join(plugin_names("exporters"))
    option("--format", required=True, help=f"output format: {formats} (required)")
    option("-o", "--out", required=True, metavar="DIR", help="output directory, which must not exist (required)")
    option("--evaluator", action="store_true", help="include evaluator-only values")
    option(
        "--environment-state",
        nargs="+",
        metavar="KEY",
        help="keys of the observation in LeRobot's observation.environment_state "
        "(default: those that do not measure the robot itself)",
    )
    option("--split-at-gaps", action="store_true", help="cut episodes at steps without an action, and leave these out")
    option("--allow-dry-run", action="store_true", help="export a dry run; the source of each action is then dry run")
    option("--allow-unclean", action="store_true", help="export a run that ended uncleanly; the metadata record it")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Export one run."""
    from embodied_env.extensions.export.run_export import export_run

    with ProgressBar(f"exporting to {args.format}, steps") as progress:
        account = export_run(
            args.run_directory,
            args.out,
            format=args.format,
            evaluator=args.evaluator,
            allow_unclean=args.allow_unclean,
            environment_state=args.environment_state,
            split_at_gaps=args.split_at_gaps,
            allow_dry_run=args.allow_dry_run,
            progress=progress.update,
        )
    if args.json:
        say(json.dumps({"path": args.out, **account}, indent=2))
    else:
        problem = "" if account["clean"] else f"; the run is not clean: {account['problem']}"
        noun = "episode" if account["episodes"] == 1 else "episodes"
        world = account["world"]
        say(f"{args.out}: {account['steps']} steps in {account['episodes']} {noun} ({world}){problem}")
        if account["gaps"]:
            done = "left out, and the episodes cut there" if args.split_at_gaps else "their action is the applied one"
            say(f"steps without an action: {account['gaps']}; {done}")
        if refused := account["action_sources"].get("refused"):
            say(f"steps whose action was not executed: {refused}; their action_source is refused")
    return SOUND
