"""``contract validate`` reports the errors, chosen values and suspicious values."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from embodied_env.backends.backend_registry import unknown_backend
from embodied_env.cli import SOUND, WRONG_USAGE
from embodied_env.cli.main import print_error
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_validation import suspected_degrees, suspicious_values
from embodied_env.contract.model_files import EMBEDDED
from embodied_env.contract.required_sensors import describe_stops, sort_by_stop
from embodied_env.core.contract_blocks import check_blocks
from embodied_env.core.reset_draws import validate_home
from embodied_env.core.terminal import say
from embodied_env.errors import ContractError
from embodied_env.plugins.plugin_lookup import get_plugin, known_backends

_SHORT = 16  # hex digits of a fingerprint for display


def run(args: argparse.Namespace) -> int:
    """Validate each contract and return the exit status."""
    results = [_validated(name, trust_task=args.trust_task, task=args.task) for name in args.contracts]
    if args.json:
        say(json.dumps(results, indent=2, allow_nan=False))
    else:
        for result in results:
            if result["valid"]:
                _report(result)
    return SOUND if all(result["valid"] for result in results) else WRONG_USAGE


def _report(result: Mapping[str, Any]) -> None:
    task = "" if result["task_verified"] else "; task not verified: use --trust-task or --task FILE"
    say(f"{result['contract']}: valid, fingerprint {result['fingerprint'][:_SHORT]}, {result['source']}{task}")
    for path, reason in result["unconfirmed"].items():
        say(f"  chosen: {path}: {reason}")
    for path, question in result["unknown"].items():
        say(f"  unknown: {path}: {question}; real moves no robot until it is set")
    say(f"  lost sensors: {describe_stops(result['stops'], result['does_not_stop'])}")
    for path, reason in result["suspicious"].items():
        say(f"  suspicious: {path}: {reason}")
    for path, reason in result["hints"].items():
        say(f"  hint: {path}: {reason}")


def _validated(name: str, *, trust_task: bool, task: str | None) -> dict[str, Any]:
    """Load one contract, and its task if shipped or trusted, and print every error on stderr."""
    from embodied_env.tasks import find_task, is_shipped, load_task

    errors: list[ContractError] = []
    is_loaded = False
    try:
        contract = load_contract(name)
        check_blocks(contract)
        fingerprint = contract.fingerprint
        errors += [*_errors_of_plugins(contract), *_errors_of_backends(contract)]
        is_loaded = trust_task or task is not None or is_shipped(contract)
        if is_loaded:
            load_task(contract, trust=trust_task, file=task)
        else:
            find_task(contract)
    except ContractError as error:
        errors += [error, *error.others]
    if errors:
        for each in errors:
            print_error(each)
        found = [{"path": each.path, "problem": each.problem} for each in errors]
        return {"contract": name, "valid": False, **found[0], "errors": found}
    stops, others = sort_by_stop(contract)
    return {
        "contract": name,
        "valid": True,
        "stops": stops,
        "does_not_stop": others,
        "source": contract.source,
        "fingerprint": fingerprint,
        "task_verified": is_loaded,
        "unconfirmed": dict(contract.unconfirmed),
        "unknown": dict(contract.unknown),
        "suspicious": dict(suspicious_values(contract)),
        "hints": _hints(contract),
    }


def _hints(contract: Contract) -> dict[str, str]:
    """Return profiles of unknown backends, and a prompt that policies that see images may need."""
    hints = {f"backends.{name}": unknown_backend(name) for name in contract.backends if name not in known_backends()}
    sees_images = any(each.encoding is not None and each.visibility == "agent" for each in contract.sensors.values())
    if not sees_images or contract.task.instruction is not None:
        return hints
    policies = "language-conditioned policies (openpi, GR00T, and pi0 or SmolVLA of LeRobot)"
    prompt = f"none; {policies} need it as their prompt, and LeRobot datasets as their task"
    return {**hints, "task.instruction": prompt}


def _errors_of_plugins(contract: Contract) -> Iterator[ContractError]:
    """Yield the gates and interlocks whose packages are not installed."""
    for kind, names in (("gates", contract.safety.gates), ("interlocks", contract.safety.interlocks)):
        for name in names:
            try:
                get_plugin(kind, name, error=partial(ContractError, f"safety.{kind}.{name}", source=contract.source))
            except ContractError as error:
                yield error


def _errors_of_backends(contract: Contract) -> Iterator[ContractError]:
    """Yield missing models, wrong homes, limits that look like degrees, and unknown names."""
    found = [*_errors_of_files(contract)]
    yield from found
    for path, problem in suspected_degrees(contract):
        yield ContractError(path, problem, source=contract.source)
    if not found and "mujoco" in contract.backends and find_spec("mujoco") is not None:
        from embodied_env.sim.world import World
        from embodied_env.sim.world_profile import load_profile

        try:
            World(contract, load_profile(contract, "mujoco"), path="backends.mujoco").close()
        except ContractError as error:
            yield error


def _errors_of_files(contract: Contract) -> Iterator[ContractError]:
    from embodied_env.sim.world_model import find_model

    for name, profile in contract.backends.items():
        if isinstance(model := profile.get("model"), str):
            try:
                find_model(contract, model, f"backends.{name}.model")
            except ContractError as error:
                yield error
        if name in EMBEDDED:  # their `home` is checked with the model
            continue
        reset = profile.get("reset")
        homes = {"home": profile.get("home"), "reset.home": reset.get("home") if isinstance(reset, Mapping) else None}
        for key, home in homes.items():
            if not isinstance(home, Mapping):  # checked by its backend
                continue
            no_numbers = {
                joint: f"invalid value: {position!r} (expected a number)"
                for joint, position in home.items()
                if isinstance(position, bool) or not isinstance(position, (int, float))
            }
            for joint, problem in (no_numbers or validate_home(contract, home)).items():
                yield ContractError(f"backends.{name}.{key}.{joint}", problem, source=contract.source)
