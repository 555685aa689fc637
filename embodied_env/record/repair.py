"""Repair of runs that ended uncleanly: their whole records become files that viewers open; the runs stay unsound."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.errors import ContractError, RecordError
from embodied_env.record.manifest import contract_of_manifest, write_json
from embodied_env.record.mcap_file import McapRecords, regular_size
from embodied_env.record.rewrite import damaged_path, rewrite_log, rewrite_messages
from embodied_env.record.row_log import CHANNELS
from embodied_env.record.run import read_run
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES


@dataclass(frozen=True, kw_only=True)
class RepairedFile:
    """A file of a repaired run."""

    name: str
    problem: str  # why it was not complete, or ""
    count: int  # whole rows or raw messages
    cut_bytes: int  # after the last whole record
    rewritten: bool  # now; False: it was not a journal
    kept: str  # name under which the file with the bytes cut off is kept, or ""


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Result of a repair."""

    path: Path
    problem: str  # why the run was not sound before, and still is not; "" for a sound run
    files: tuple[RepairedFile, ...]
    without_views: str = ""  # why the rows have no images, poses and joint states for viewers, or ""

    @property
    def changed(self) -> bool:
        """Whether a file was rewritten."""
        return any(file.rewritten for file in self.files)


def repair_run(path: str | Path) -> RepairReport:
    """Rewrite the journals of the run at `path` for viewers, as a clean close does; idempotent.

    Every whole record is kept, what follows the last one is cut off, and ``repaired`` in the manifest has the problem,
    the counts and the time. The audit keeps the problem of the run: a repaired run is never sound. A sound run whose
    journals were not rewritten is not marked. A file of which something is cut off is kept under another name.

    Raises:
        RecordError: if `path` is not a run directory, or the run is being recorded, or a file cannot be rewritten,
            which leaves that file unchanged.
        MissingDependencyError: if mcap is not installed.
    """
    run = read_run(path)
    contract: Contract | None = None
    without_views = ""
    try:
        contract = contract_of_manifest(run.manifest)
    except (ContractError, RecordError) as error:
        without_views = str(error)
    problem = run.problem
    names = [LOG, *([MESSAGES] if run.manifest.get("messages") else [])]
    files = tuple(_repair_file(run.path / name, contract) for name in names)
    marks = list(run.manifest.get("repaired") or [])
    if problem and (not marks or any(file.rewritten for file in files)):
        utc = datetime.fromtimestamp(SteadyClock().system_ns() / NS_PER_S, tz=UTC).isoformat(timespec="milliseconds")
        marks.append({"utc": utc, "problem": problem, "files": [asdict(file) for file in files]})
        if read_run(path).manifest != run.manifest:
            raise RecordError("the manifest changed during the repair (expected a run that has ended); repair it again")
        write_json(run.path / MANIFEST, {**run.manifest, "repaired": marks})
    return RepairReport(path=run.path, problem=problem, files=files, without_views=without_views)


def _repair_file(path: Path, contract: Contract | None) -> RepairedFile:
    """Rewrite a file if it is a journal, or not complete."""
    records, count, is_journal = McapRecords(path), 0, False
    for stored in records.messages():
        count += path.name == MESSAGES or stored.channel.topic in CHANNELS
        is_journal = is_journal or stored.place.chunk is None
    is_rewritten = is_journal or bool(records.problem)
    try:
        cut_bytes = regular_size(path) - records.end if records.problem else 0
    except OSError as error:
        raise RecordError(f"{path.name} cannot be rewritten: {error.strerror}") from None
    keep = cut_bytes > 0  # there may be whole records after a wrong length
    if is_rewritten and path.name == LOG:
        rewrite_log(path, contract if is_journal else None, keep=keep)
    elif is_rewritten:
        rewrite_messages(path, keep=keep)
    outcome: dict[str, Any] = {"rewritten": is_rewritten, "kept": damaged_path(path).name if keep else ""}
    return RepairedFile(name=path.name, problem=records.problem, count=count, cut_bytes=cut_bytes, **outcome)
