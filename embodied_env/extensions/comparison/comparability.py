"""Check that two runs are comparable.

They have the same contract, task and wrappers, and both or neither moved a robot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import SHIPPED_TASKS, differences, meaning, to_plain
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError, EmbodiedEnvError, RecordError, UsageError
from embodied_env.extensions.report.html_pages import mapping_of
from embodied_env.record import Run
from embodied_env.record.manifest import RECORDER, contract_of_manifest

_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_PATHS = 3  # in a note
_OF_TASK = ("version", "terms", "source_sha256")  # of the loaded task


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A difference between the conditions of two runs, with its path and both values."""

    path: str
    a: Any
    b: Any


class NotComparableError(EmbodiedEnvError):
    """Two runs differ in their conditions by `mismatches`, which the user does not ignore."""

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        self.mismatches = tuple(mismatches)
        paths = ", ".join(mismatch.path for mismatch in self.mismatches)
        super().__init__(
            f"cannot compare runs that differ in {paths} (expected equal contracts and wrappers, both or neither dry)"
        )


@dataclass(frozen=True, kw_only=True)
class Comparability:
    """Conditions of two runs that may be compared."""

    ignored: tuple[Mismatch, ...]  # differences that the user ignores
    notes: tuple[str, ...]  # what is unknown about the conditions, in sentences
    contracts: tuple[Contract | None, Contract | None]  # of run A and of run B, None where one cannot be read here


def comparability(a: Run, b: Run, ignore: Iterable[str] = ()) -> Comparability:
    """Compare the conditions of two runs.

    A path in `ignore` accepts differences at it and below it: ``safety`` accepts ``safety.margins.velocity``.

    Raises:
        NotComparableError: for differences that are not ignored.
    """
    notes: list[str] = []
    contracts = _read_contract("A", a, notes), _read_contract("B", b, notes)
    found = [
        *_contract_mismatches(a, b, *contracts),
        *_task_mismatches(a, b, contracts),
        *_wrapper_mismatches(a, b),
    ]
    abilities = [mapping_of(run.manifest, "capabilities") for run in (a, b)]
    single: dict[str, list[Any]] = {
        "capabilities.actuates": [each.get("actuates") is not False for each in abilities],  # False: a dry run
        "task.instruction": [found.task.instruction for found in contracts if found is not None],  # in no fingerprint
    }
    found += [Mismatch(path=path, a=pair[0], b=pair[-1]) for path, pair in single.items() if pair[:1] != pair[-1:]]
    unrecorded = {
        layer["class"] for run in (a, b) for layer in _wrappers(run) if "kwargs" in layer and layer["kwargs"] is None
    }
    notes += [f"{name} does not record its arguments, so they may differ." for name in sorted(unrecorded)]
    notes += _world_notes(a, b, contracts)
    paths = tuple(ignore)
    refused = [mismatch for mismatch in found if not any(_is_at_or_below(mismatch.path, path) for path in paths)]
    if refused:
        raise NotComparableError(refused)
    return Comparability(ignored=tuple(found), notes=tuple(notes), contracts=contracts)


def check_ignored(paths: Iterable[str], runs: Iterable[Run]) -> None:
    """Raise UsageError for a path that no run has, with the keys at its place."""
    for path in paths:
        places = [_conditions(run) for run in runs]
        for key in path.partition("[")[0].split("."):
            if not any(key in place for place in places):
                raise UsageError(f"unknown path to ignore: {path!r}: {one_of(key, set().union(*places))}")
            places = [place[key] for place in places if isinstance(place.get(key), dict)]


def _conditions(run: Run) -> dict[str, Any]:
    contract = _read_contract("", run, [])
    found = {"task": {}} if contract is None else meaning(contract, with_defaults=True)
    found["task"].update(found["task"].pop("parameters", {}) | dict.fromkeys((*_OF_TASK, "instruction")))
    return {**found, "contract": {"fingerprint": ""}, "wrappers": [], "capabilities": {"actuates": True}}


def _read_contract(name: str, run: Run, notes: list[str]) -> Contract | None:
    try:
        contract = contract_of_manifest(run.manifest)
        meaning(contract)
    except (ContractError, RecordError) as error:
        notes.append(
            f"The contract of run {name} cannot be loaded ({error}): "
            "joints have no names and no tracking errors, and the instruction is unknown."
        )
        return None
    if contract.fingerprint != run.manifest["contract"]["fingerprint"]:
        notes.append(f"The fingerprint in the manifest of run {name} differs from that of its contract.")
    return contract


def _contract_mismatches(a: Run, b: Run, contract_a: Contract | None, contract_b: Contract | None) -> list[Mismatch]:
    of_a, of_b = (run.manifest["contract"]["fingerprint"] for run in (a, b))
    is_equal = of_a == of_b
    if contract_a is not None and contract_b is not None:
        found = differences(meaning(contract_a, with_defaults=True), meaning(contract_b, with_defaults=True))
        if found or is_equal:
            return [Mismatch(path=path.replace("task.parameters.", "task."), a=x, b=y) for path, x, y in found]
    elif is_equal and _SHA256.fullmatch(of_a):
        return []
    return [Mismatch(path="contract.fingerprint", a=of_a, b=of_b)]


def _task_mismatches(a: Run, b: Run, contracts: Iterable[Contract | None]) -> Iterator[Mismatch]:
    """Yield differences of the loaded tasks, except shipped ones, which the contract covers."""
    if all(contract is not None and contract.task.type in SHIPPED_TASKS for contract in contracts):
        return
    of_a, of_b = ({key: mapping_of(run.manifest, "task").get(key) for key in _OF_TASK} for run in (a, b))
    for path, x, y in differences(of_a, of_b):
        yield Mismatch(path=f"task.{path}", a=x, b=y)


def _wrapper_mismatches(a: Run, b: Run) -> list[Mismatch]:
    of_a, of_b = _wrappers(a), _wrappers(b)
    if len(of_a) != len(of_b):
        classes = ([layer["class"] for layer in layers] for layers in (of_a, of_b))
        return [Mismatch(path="wrappers", a=next(classes), b=next(classes))]
    return [Mismatch(path=f"wrappers{path}", a=x, b=y) for path, x, y in differences(of_a, of_b)]


def _world_notes(a: Run, b: Run, contracts: tuple[Contract | None, Contract | None]) -> Iterator[str]:
    """Yield the differences of the worlds of two runs, which no fingerprint covers."""
    backend = a.manifest["backend"]
    if b.manifest["backend"] != backend:
        return
    if a.manifest["backend_fingerprint"] != b.manifest["backend_fingerprint"]:
        profiles = [{} if contract is None else to_plain(contract.backends.get(backend, {})) for contract in contracts]
        paths = [path for path, *_ in differences(*profiles)]
        named = f" in {', '.join(paths[:_MOST_PATHS])}" if paths else ""
        more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
        yield f"The profiles of {backend} differ{named}{more}. That may cause any of the differences."
    if a.manifest["delays"] != b.manifest["delays"]:
        yield "The injected delays differ. That may cause any of the differences."


def _wrappers(run: Run) -> list[dict[str, Any]]:
    """Return class and arguments of each layer, outermost first.

    Without the arguments of the recorder, which changes nothing, and of the environment itself: its contract is
    compared, and its backend may differ.
    """
    layers = [{"class": layer["class"], "kwargs": layer["kwargs"]} for layer in run.manifest["wrappers"]]
    for layer in layers:
        if layer["class"] == RECORDER or layer is layers[-1]:
            del layer["kwargs"]
    return layers


def _is_at_or_below(path: str, ignored: str) -> bool:
    return path == ignored or (bool(ignored) and path.startswith((f"{ignored}.", f"{ignored}[", f"{ignored} ")))
