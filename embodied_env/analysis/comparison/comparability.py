"""Whether two runs may be compared: one contract, one stack of wrappers, and commands that reached the robot in both.

Where they reached it in neither, in two dry runs, that is one kind as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.analysis.report.row_access import get_mapping, text_of
from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import SHIPPED_TASKS, differences, meaning
from embodied_env.errors import ContractError, EmbodiedEnvError, RecordError
from embodied_env.record import Run
from embodied_env.record.manifest import contract_of_manifest

FINGERPRINT = "contract.fingerprint"
WRAPPERS = "wrappers"
ACTUATES = "capabilities.actuates"
"""False in the manifest of a dry run: nothing that was sent reached a robot."""

RECORDER = "embodied_env.record.recorder:RecordTransitions"
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One thing in which two runs are not of one kind: its path, and both values in types of JSON."""

    path: str
    a: Any
    b: Any


class NotComparableError(EmbodiedEnvError):
    """Two runs are not of one kind.

    Attributes:
        mismatches: what differs, without what the user ignores.
    """

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        """Name what differs."""
        self.mismatches = tuple(mismatches)
        paths = ", ".join(mismatch.path for mismatch in self.mismatches)
        super().__init__(
            f"the runs differ in {paths}; allowed: runs of one contract and one stack of wrappers, both dry or none"
        )


@dataclass(frozen=True, kw_only=True)
class Comparability:
    """What was found of two runs that may be compared.

    Attributes:
        ignored: what differs, and was accepted.
        idle: what the user ignores, and does not differ.
        notes: what is not known about both, in sentences.
        contracts: those of run A and of run B; None where one cannot be read here.
    """

    ignored: tuple[Mismatch, ...]
    idle: tuple[str, ...]
    notes: tuple[str, ...]
    contracts: tuple[Contract | None, Contract | None]


def comparability(a: Run, b: Run, ignore: Iterable[str] = ()) -> Comparability:
    """Return what differs between the kinds of `a` and `b` and is ignored.

    A path in `ignore` accepts what differs at it and below it: ``safety`` accepts ``safety.margins.velocity``.

    Raises:
        NotComparableError: when something differs that is not ignored.
    """
    contracts = [_contract_of(run) for run in (a, b)]
    notes = [
        f"The contract of run {name} cannot be read here ({problem}): joints have no names, and nothing is tracked."
        for name, (_, problem) in zip("AB", contracts, strict=True)
        if problem
    ] + [
        f"The fingerprint in the manifest of run {name} is not what the text of its contract makes here."
        for name, run, (contract, _) in zip("AB", (a, b), contracts, strict=True)
        if contract is not None and contract.fingerprint != get_mapping(run.manifest, "contract").get("fingerprint")
    ]
    found = [
        *_of_contracts(a, b, contracts[0][0], contracts[1][0]),
        *_of_tasks(a, b, [contract for contract, _ in contracts]),
    ]
    found += [*_of_wrappers(a, b), *_of_what_moved(a, b)]
    ignored: list[Mismatch] = []
    refused: list[Mismatch] = []
    used: set[str] = set()
    paths = list(dict.fromkeys(ignore))
    for mismatch in found:
        by = [path for path in paths if _is_at_or_below(mismatch.path, path)]
        used.update(by)
        (ignored if by else refused).append(mismatch)
    if refused:
        raise NotComparableError(refused)
    return Comparability(
        ignored=tuple(ignored),
        idle=tuple(path for path in paths if path not in used),
        notes=(*notes, *_notes_on_wrappers(a, b)),
        contracts=(contracts[0][0], contracts[1][0]),
    )


def _contract_of(run: Run) -> tuple[Contract | None, str]:
    """Return the contract of a run, and why it cannot be read, or ""."""
    try:
        contract = contract_of_manifest(run.manifest)
        meaning(contract)
    except (ContractError, RecordError) as error:
        return None, str(error)
    return contract, ""


def _of_contracts(a: Run, b: Run, of_a: Contract | None, of_b: Contract | None) -> list[Mismatch]:
    said = [text_of(get_mapping(run.manifest, "contract").get("fingerprint")) for run in (a, b)]
    if of_a is not None and of_b is not None:
        inside = [
            Mismatch(path=path.replace("task.parameters.", "task."), a=x, b=y)
            for path, x, y in differences(meaning(of_a), meaning(of_b))
        ]
        if inside or said[0] == said[1]:
            return inside
        return [Mismatch(path=FINGERPRINT, a=said[0] or None, b=said[1] or None)]
    if said[0] == said[1] and _SHA256.fullmatch(said[0]):
        return []
    return [Mismatch(path=FINGERPRINT, a=said[0] or None, b=said[1] or None)]


def _of_tasks(a: Run, b: Run, contracts: Sequence[Contract | None]) -> list[Mismatch]:
    """Return what differs in the tasks as they were loaded; of a shipped one its version is part of the contract."""
    if all(contract is not None and contract.task.type in SHIPPED_TASKS for contract in contracts):
        return []
    keys = ("version", "terms", "source_sha256")
    first, second = ({key: get_mapping(run.manifest, "task").get(key) for key in keys} for run in (a, b))
    return [Mismatch(path=f"task.{path}", a=x, b=y) for path, x, y in differences(first, second)]


def _of_wrappers(a: Run, b: Run) -> list[Mismatch]:
    stacks = [_stack(run) for run in (a, b)]
    if None in stacks or len(stacks[0] or ()) != len(stacks[1] or ()):
        first, second = (_outline(stack) for stack in stacks)
        return [] if first == second and first is not None else [Mismatch(path=WRAPPERS, a=first, b=second)]
    return [Mismatch(path=f"{WRAPPERS}{path}", a=x, b=y) for path, x, y in differences(stacks[0], stacks[1])]


def _of_what_moved(a: Run, b: Run) -> list[Mismatch]:
    """A run whose manifest does not say that it was dry was none."""
    first, second = (get_mapping(run.manifest, "capabilities").get("actuates") is not False for run in (a, b))
    return [] if first == second else [Mismatch(path=ACTUATES, a=first, b=second)]


def _stack(run: Run) -> list[dict[str, Any]] | None:
    """Return class and arguments of each layer, outermost first; None where the manifest does not tell.

    Left out are the arguments of the recorder, who does not change what he records, and of the environment itself: its
    contract is compared, and its world may be another.
    """
    layers = run.manifest.get("wrappers")
    if not isinstance(layers, list) or not all(isinstance(layer, Mapping) for layer in layers):
        return None
    stack = [{"class": layer.get("class"), "kwargs": layer.get("kwargs")} for layer in layers]
    for index, layer in enumerate(stack):
        if layer["class"] == RECORDER or index == len(stack) - 1:
            del layer["kwargs"]
    return stack


def _outline(stack: list[dict[str, Any]] | None) -> list[Any] | None:
    return None if stack is None else [layer["class"] for layer in stack]


def _notes_on_wrappers(a: Run, b: Run) -> Iterable[str]:
    unknown = {
        str(layer["class"])
        for run in (a, b)
        for layer in _stack(run) or ()
        if "kwargs" in layer and layer["kwargs"] is None
    }
    return (f"{name} does not record its arguments, so they may differ." for name in sorted(unknown))


def _is_at_or_below(path: str, ignored: str) -> bool:
    return path == ignored or (bool(ignored) and path.startswith((f"{ignored}.", f"{ignored}[", f"{ignored} ")))
