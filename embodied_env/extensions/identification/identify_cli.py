"""The command ``embodied-env identify``, which excites a robot and fits the simulator."""

from __future__ import annotations

import argparse
import json
import re
import typing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli import verb_arguments as verbs
from embodied_env.contract import load_contract
from embodied_env.core.terminal import ProgressBar, print_tables, say
from embodied_env.errors import UsageError
from embodied_env.extensions.calibration.planned_moves import BRISK_AMPLITUDE, brisk_moves
from embodied_env.ros.transport.fastdds import enable_large_segments

if TYPE_CHECKING:
    from embodied_env.contract import Contract
    from embodied_env.extensions.identification.identification import Identification
    from embodied_env.extensions.identification.rollouts import Parameter

_OF_ROBOT = ("namespace", *verbs.ROBOT_OPTIONS, "connect_timeout_s")
_PARAMETER = re.compile(r"([a-z_]+)(?:\.([^=]+))?(?:=([^=]+)\.\.([^=]+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    option = parser.add_argument
    option("runs", metavar="RUN", nargs="*", type=verbs.run_directory, help="run directory, such as runs/<id>")
    option("--contract", help="name or path of the contract whose model is fitted")
    help_ = "backend whose profile has the model (default: mujoco); with --excite the one that moves (default: real)"
    option("--backend", help=help_)
    option(
        "--parameters",
        nargs="+",
        metavar="KIND[.NAME[+NAME]][=LOW..HIGH]",
        default=[],
        help="parameters to fit, with bounds: gain, damping, friction_loss, armature, mass or command_delay; without a "
        "name of each joint, with names joined by + shared (default: all but masses)",
    )
    option("--segment", type=float, metavar="SECONDS", default=1.0, help="length of the segments of a run, s")
    verbs.add_seed(parser, "seed of the bootstrap; with --excite of the motions and of the reset")
    option("--out", type=verbs.output_file, metavar="FILE", help="file to write (default: NAME.identified.yaml)")
    option("--report", type=verbs.output_file, metavar="FILE", help="HTML page to write (default: none)")
    verbs.add_force(parser, "the file and the page")
    verbs.add_json(parser)
    option("--excite", metavar="CONTRACT", help="contract of a robot to move and record, instead of a fit")
    option("--record", metavar="FOLDER", default="runs", help="with --excite: parent of the run directory")
    option("--joints", nargs="+", default=[], metavar="JOINT", help="with --excite: joints to move (default: all)")
    help_ = "with --excite: amplitude of a motion as a fraction of the joint range"
    option("--amplitude", type=float, default=BRISK_AMPLITUDE, help=help_)
    option("--repeats", type=verbs.integer_from(1), metavar="N", default=3, help="with --excite: number of repetitions")
    verbs.add_options(parser, *_OF_ROBOT)


def run(args: argparse.Namespace) -> int:
    """Fit and write parameters or record a run, and return 1 without evidence or a motion."""
    if args.excite is not None:
        if args.runs or args.contract is not None:
            raise UsageError(
                "--excite with runs or --contract (expected --excite CONTRACT, or RUN... --contract CONTRACT)"
            )
        return _excite(args)
    if not args.runs or args.contract is None:
        raise UsageError("missing RUN or --contract (expected RUN... --contract CONTRACT, or --excite CONTRACT)")
    from embodied_env.extensions.identification.identification import identify, write_page
    from embodied_env.extensions.report.html_pages import check_page_libraries
    from embodied_env.sim.identified_parameters import write_identified

    contract = load_contract(args.contract)
    out = args.out or f"{contract.name}.identified.yaml"
    verbs.check_new(out, args.report, force=args.force)
    parameters = [each for text in args.parameters for each in parse_parameter(text, contract)]
    if args.report is not None:
        check_page_libraries()
    with ProgressBar() as progress:
        found = identify(
            args.runs,
            contract,
            parameters,
            backend=args.backend or "mujoco",
            segment_s=args.segment,
            seed=args.seed,
            progress=progress,
        )
    write_identified(found.model, out, replace=args.force)
    if args.report is not None:
        write_page(found, args.report, replace=args.force)
    if args.json:
        gaps = {name: dict(counts) for name, counts in found.gaps.items()}
        say(json.dumps({**asdict(found.model), "gaps": gaps, "is_better": found.is_better}, indent=1))
    else:
        _print(found, str(out))
    return SOUND if found.is_better and not found.model.unexplained else UNSOUND


def _excite(args: argparse.Namespace) -> int:
    from embodied_env.extensions.calibration.excitation import find_moved_joints, record_excitation

    contract, backend = load_contract(args.excite), args.backend or "real"
    enable_large_segments(contract)
    joints = list(find_moved_joints(contract, args.joints))
    moves = brisk_moves(contract, joints, amplitude=args.amplitude, repeats=args.repeats, seed=args.seed)
    with ProgressBar(f"{contract.name} on {backend} · moves") as progress:
        found = record_excitation(
            contract,
            moves,
            backend=backend,
            record=Path(args.record),
            seed=args.seed,
            progress=progress.update,
            resetting=progress.pause,
            **verbs.given_options(args, *_OF_ROBOT),
        )
    if args.json:
        say(json.dumps({"run": str(found.path), "missing": dict(found.missing)}, indent=1))
    else:
        for name, why in found.missing.items():
            say(f"missing moves of {name}: {why}")
        say(f"{found.path}: next: embodied-env identify {found.path} --contract {args.excite}")
    return UNSOUND if found.missing else SOUND


def parse_parameter(text: str, contract: Contract) -> list[Parameter]:
    """Return the parameters of ``KIND[.NAME[+NAME]][=LOW..HIGH]``, or raise UsageError."""
    from embodied_env.extensions.identification.identification import JOINT_KINDS, default_parameters
    from embodied_env.extensions.identification.rollouts import Parameter
    from embodied_env.sim.identified_parameters import Kind

    match = _PARAMETER.fullmatch(text)
    kinds = typing.get_args(Kind)
    if match is None or match[1] not in kinds:
        expected = f"expected KIND[.NAME[+NAME]][=LOW..HIGH] with one of: {', '.join(kinds)}"
        raise UsageError(f"--parameters: {text!r} ({expected})")
    kind, names = typing.cast("Kind", match[1]), tuple(match[2].split("+")) if match[2] else ()
    try:
        low, high = (None, None) if match[3] is None else (float(match[3]), float(match[4]))
    except ValueError:
        low, high = 1.0, 0.0
    if low is not None and high is not None and not 0.0 <= low < high < float("inf"):
        raise UsageError(f"--parameters: bounds of {text!r} (expected numbers, 0 <= LOW < HIGH)")
    if bool(names) == (kind == "command_delay") and not (kind in JOINT_KINDS and not names):
        raise UsageError(f"--parameters: {text!r} (expected {'no name' if names else 'the name of a body'})")
    if names or kind == "command_delay":
        return [Parameter(kind=kind, of=names, low=low, high=high)]
    of_kind = [each for each in default_parameters(contract) if each.kind == kind]
    return [Parameter(kind=kind, of=each.of, low=low, high=high) for each in of_kind]


def _print(found: Identification, out: str) -> None:
    from embodied_env.sim.identified_parameters import parameter_name

    model = found.model
    rows = [
        {"parameter": parameter_name(each.kind, each.of), "model": each.model, "value": each.value}
        | {"95 % interval": f"{each.low:.4g} to {each.high:.4g}"}
        for each in model.parameters
    ]
    left = [
        {"undetermined": parameter_name(each.kind, each.of), "model": each.model, "because": each.reason}
        for each in model.undetermined
    ]
    residuals = [{"joint": name, **asdict(each)} for name, each in model.residuals.items()]
    title = f"RMS of {model.held_out} held-out segments"
    sections = {"identified": rows, "undetermined, as in the model": left, title: residuals}
    print_tables({name: section for name, section in sections.items() if section})
    for name, gaps in found.gaps.items():
        if gaps:
            say(f"{name}: gaps: {', '.join(f'{count} {kind}' for kind, count in gaps.most_common())}")
    if model.unexplained:
        say(f"the model does not explain the motion of {', '.join(model.unexplained)}: intervals do not count")
    better = "" if found.is_better else "; not better than the model on held-out data: do not use it"
    say(f"{out}: {len(rows)} parameters, {len(left)} undetermined{better}")
