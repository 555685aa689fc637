"""``embodied-env policy`` shows, checks and drafts policy files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli import verb_arguments as verbs
from embodied_env.cli.contract_cli import print_keys
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_path
from embodied_env.contract.bounded_files import write_file
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.key_tables import declared_keys
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction, Observation
from embodied_env.core.terminal import print_tables, say, without_empty_columns
from embodied_env.errors import ContractError, UsageError
from embodied_env.policies.chunk_execution import split_chunk
from embodied_env.policies.input_mapping import VectorInput
from embodied_env.policies.policy_file import (
    STATISTICS,
    TRANSFORMS,
    InputPart,
    OutputPart,
    OutputSpec,
    PolicyFile,
    PolicyInputSpec,
    read_policy_file,
)
from embodied_env.policies.policy_file_interface import PolicyFileInterface
from embodied_env.policies.policy_loader import load_policy
from embodied_env.policies.policy_model import find_implausible

Row = dict[str, Any]

_MOST_ROWS = 24  # rows of one part, such as a scan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    add = verbs.add_actions(parser)
    show = add(_show, "show", "show what becomes what, with one observation through it")
    check = add(_check, "check", "check a policy file against a contract and, with --policy, a model")
    print_all = partial(print_keys, [*declared_keys(PolicyFile)])
    keys = add(print_all, "keys", "print the keys of a policy file, with their bounds and defaults")
    keys.add_argument("path", metavar="PATH", nargs="?", help="key, printed with those below it (default: all)")
    init = add(_init, "init", "write a draft policy file of a LeRobot policy, and list what is unknown")
    for each in (show, check, init):
        each.add_argument("--contract", metavar="CONTRACT", required=True, help="name or path of a contract")
    for each in (show, check):
        each.add_argument("file", metavar="FILE", help="name or path of a policy file")
        each.add_argument("--backend", help="backend of the observation (default: mujoco or fake, from the contract)")
        verbs.add_seed(each, "seed of the reset")
        verbs.add_options(each, *verbs.ROBOT_OPTIONS)
    verbs.add_policy(check, default=None, what="address of the model, for an inference from one observation")
    init.add_argument("--from-lerobot", metavar="DIR", required=True, help="folder of a pretrained policy of LeRobot")
    init.add_argument("--dataset", metavar="DIR", help="LeRobot dataset that it was trained on (default: none)")
    formats = "format to run: lerobot, which normalises itself, or onnx, exported without its processors"
    init.add_argument("--format", choices=("lerobot", "onnx"), default="lerobot", help=formats)
    init.add_argument("-o", "--output", metavar="FILE", help="policy file to write (default: standard output)")
    verbs.add_force(init, "the policy file")


def run(args: argparse.Namespace) -> int:
    """Run the action and return its exit status."""
    return int(args.act(args))


def _show(args: argparse.Namespace) -> int:
    """Print each component of one observation before and after, and the action of 0 and 1."""
    contract, interface = _load(args)
    observation = _observe(contract, args)
    shown: dict[str, list[Row]] = {"timing": [_timing(contract, interface)], "inputs": [], "outputs": []}
    values = interface.to_inputs(observation)
    for name, spec in interface.file.inputs.items():
        reader = interface.inputs.get(name)
        if isinstance(reader, VectorInput):
            shown["inputs"] += _vector_rows(name, spec, reader, interface, observation)
        else:
            source, seen = "task.instruction", str(contract.task.instruction)
            if spec.image is not None:
                source, seen = spec.image.field, _summary(observation[spec.image.field])
            row = {"input": name, "from": source, "value": seen, "transformation": _of_all(spec) or None}
            shown["inputs"].append(row | {"becomes": _summary(values[name])})
    actions = {}
    for number in (0, 1):
        outputs = {name: np.full(shape, float(number)) for name, shape in interface.actions.shapes.items()}
        actions[f"action of {number}"] = _by_joint(contract, interface.to_action(outputs))
    for name, output in interface.file.outputs.items():
        shown["outputs"] += _output_rows(name, output, interface.actions.labels[name], actions)
    if args.json:
        say(json.dumps({"policy": interface.file.name, "sha256": interface.file.sha256, **shown}, indent=2))
    else:
        print_tables({title: without_empty_columns(rows) for title, rows in shown.items()})
    return SOUND


def _check(args: argparse.Namespace) -> int:
    """Run all checks and one inference, with exit status 1 for an implausible action."""
    contract, interface = _load(args)
    found: Row = {"policy": interface.file.name, "sha256": interface.file.sha256, "contract": contract.name}
    status = SOUND
    if args.policy is not None:
        with closing(load_policy(args.policy, contract, policy_file=args.file, trust=args.trust_policy)) as policy:
            policy.reset(seed=args.seed, episode_index=0)
            observation = _observe(contract, args)
            action = policy(observation)
            implausible = find_implausible(policy, contract, observation, split_chunk(action) or [action])
        is_missing = isinstance(action, NoAction)
        status = UNSOUND if is_missing or implausible else SOUND
        result = action.reason if isinstance(action, NoAction) else _by_joint(contract, action)
        found |= {"address": args.policy, "no_action" if is_missing else "action": result, "implausible": implausible}
    if args.json:
        say(json.dumps(found, indent=2))
    elif "no_action" in found:
        say(f"no action for the observation of a reset: {found['no_action']}", file=sys.stderr)
    else:
        if not status:
            say(f"{args.file}: fits {contract.name}{f' and {args.policy}' if args.policy else ''}")
        for joint, value in found.get("action", {}).items():
            say(f"  {joint}: {value:.6g}")
        for line in found.get("implausible", ()):
            say(f"implausible: {line}; correct unit, scale or statistics in {args.file}", file=sys.stderr)
    return status


def _load(args: argparse.Namespace) -> tuple[Contract, PolicyFileInterface]:
    contract = load_contract(args.contract)
    args.file = str(shipped_files("policies").get(f"{args.file}.policy", args.file))
    return contract, PolicyFileInterface(read_policy_file(args.file), contract)


def _observe(contract: Contract, args: argparse.Namespace) -> Observation:
    from embodied_env.envs.embodied_env import EmbodiedEnv

    backend = args.backend or next((name for name in ("mujoco", "fake") if name in contract.backends), None)
    if backend is None:
        raise UsageError(f"no --backend (expected one of the contract {contract.name}: {', '.join(contract.backends)})")
    with closing(EmbodiedEnv(contract, backend=backend, **verbs.given_options(args, *verbs.ROBOT_OPTIONS))) as env:
        try:
            observation: Observation = env.reset(seed=args.seed)[0]
        except ContractError as error:
            if args.backend is not None:
                raise
            raise UsageError(f"{error}; choose another --backend, such as fake") from None
    return observation


def _vector_rows(
    name: str, spec: PolicyInputSpec, reader: VectorInput, interface: PolicyFileInterface, observation: Observation
) -> Iterator[Row]:
    """Yield a row for each component of a vector, or for the first ones of long parts."""
    last = {key: np.zeros(shape) for key, shape in interface.actions.shapes.items()}
    before, after = reader.read_raw(observation, last), reader.read(observation, last)
    for part, place in zip(spec.parts or (), reader.slices, strict=True):
        for offset, index in enumerate(range(place.start, min(place.stop, place.start + _MOST_ROWS))):
            known, unit = reader.units[index], _one(part.unit, offset)
            yield {
                "input": name,
                "index": index,
                "from": reader.labels[index],
                "value": before[index].item(),
                "unit": known if unit in (None, known) else f"{known} to {unit}",
                "transformation": _affine(part, offset, spec),
                "becomes": after[index].item(),
            }
        if place.stop > place.start + _MOST_ROWS:
            yield {"input": name, "index": f"to {place.stop - 1}", "from": f"... {part.field}"}


def _output_rows(name: str, spec: OutputSpec, labels: Sequence[str], actions: Mapping[str, Row]) -> Iterator[Row]:
    parts = [(part, offset) for part in spec.parts for offset in range(part.ignore or len(part.joints or ()))]
    for index, (label, (part, offset)) in enumerate(zip(labels, parts, strict=True)):
        joint, how = label.partition("[")[2].rstrip("]"), _affine(part, offset, spec)
        row = {"output": name, "index": index, "to": label, "unit": _one(part.unit, offset)}
        row |= {"mode": None if part.ignore else part.mode, "transformation": how}
        yield row | {title: action.get(joint) for title, action in actions.items()}


def _affine(part: InputPart | OutputPart, offset: int, spec: PolicyInputSpec | OutputSpec) -> str | None:
    """Return the operations on one component in words, or None without any."""
    keys = {key: _one(getattr(part, key), offset) for key in ("offset", "sign", "scale")}
    words = [f"{key} {value:g}" for key, value in keys.items() if value != (key != "offset")]
    if isinstance(part, InputPart):
        words += [f"{key} {least:g}" for key in TRANSFORMS if (least := getattr(part, key)) is not None]
        words += [part.quaternion] if part.quaternion else []
    elif part.threshold is not None:
        words.append(f"{part.threshold.below:g} or {part.threshold.above:g}")
    return ", ".join([*words, _of_all(spec)] if _of_all(spec) else words) or None


def _of_all(spec: PolicyInputSpec | OutputSpec) -> str:
    """Return what is done to a whole input or output, in the keys of the policy file."""
    specs = (spec.image, spec.normalize, spec.history) if isinstance(spec, PolicyInputSpec) else (spec.normalize,)
    numbers = {"field", *(name for pair in STATISTICS.values() for name in pair)}
    keys = [(key, value) for each in specs if each for key, value in to_plain(each, with_defaults=False).items()]
    return ", ".join(f"{key} {value}" for key, value in keys if key not in numbers)


def _timing(contract: Contract, interface: PolicyFileInterface) -> Row:
    file, chunk = interface.file, interface.file.chunk
    row: Row = {"control_period_s": file.control_period_s, "of the contract": contract.control_period_s}
    row |= {"resample": file.resample, "actions of an inference": 1 if chunk is None else chunk.length}
    row["executed"] = 1 if chunk is None else chunk.execute or chunk.length
    return row | {"steps of the contract": interface.actions.steps}


def _one(value: Any, index: int) -> Any:  # noqa: ANN401 - of a key with one value for all components, or one each
    return value[index % len(value)] if isinstance(value, tuple) else value


def _summary(value: Any) -> str:  # noqa: ANN401 - an image or a text
    if not isinstance(value, np.ndarray):
        return str(value)
    shape = "x".join(map(str, value.shape))
    return f"{shape} {value.dtype}, {value.min():.4g} to {value.max():.4g}, mean {value.mean():.4g}"


def _by_joint(contract: Contract, action: Any) -> dict[str, float]:  # noqa: ANN401 - of the action space
    if isinstance(action, NoAction):
        return {}
    vector = np.concatenate([*action.values()], axis=-1) if isinstance(action, dict) else np.asarray(action)
    return dict(zip(ActionLayout(contract).joints, np.atleast_2d(vector)[0].tolist(), strict=True))


def _init(args: argparse.Namespace) -> int:
    """Write the draft and print its unknown values, with exit status 1 if there are any."""
    from embodied_env.policies.lerobot_checkpoint import read_lerobot
    from embodied_env.policies.lerobot_draft import draft_policy_file

    contract, folder = load_contract(args.contract), checked_path("--from-lerobot", args.from_lerobot)
    out = None if args.output is None else checked_path("--output", args.output)
    verbs.check_new(out, force=args.force)
    policy = read_lerobot(folder, None if args.dataset is None else checked_path("--dataset", args.dataset))
    name = (folder.resolve() if out is None else out).name.partition(".")[0]
    text, gaps = draft_policy_file(policy, contract, name=name, normalize=args.format == "onnx")
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_file(out, text, replace=args.force)
        except OSError as error:
            raise UsageError(f"cannot write the policy file {out}: {error} (expected a path to write to)") from None
    if args.json:
        found = [{"unknown": what, "remedy": where} for what, where in gaps]
        say(json.dumps({"path": None if out is None else str(out), "text": text, "gaps": found}, indent=2))
    else:
        unknown = [f"  - {what}\n    -> {where}" for what, where in gaps]
        lines = [*(["unknown:"] if gaps else []), *unknown]
        lines.append(f"next: embodied-env policy check {out or 'FILE'} --contract {args.contract}")
        say(text.rstrip("\n") if out is None else f"{out}: written")
        say("\n".join(lines), file=sys.stderr if out is None else sys.stdout)
    return UNSOUND if gaps else SOUND
