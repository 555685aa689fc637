"""Repair of runs that ended uncleanly: their whole records become files that viewers open; the runs stay unsound."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from embodied_env.contract import Contract
from embodied_env.errors import ContractError, RecordError
from embodied_env.record.manifest import contract_of_manifest, write_json
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.rewrite import RewrittenFile, is_journal, rewrite_log, rewrite_messages
from embodied_env.record.run import read_run
from embodied_env.record.run_writer import LOG, MANIFEST, MESSAGES
from embodied_env.timing.clock import NS_PER_S, SteadyClock


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Result of a repair."""

    path: Path
    problem: str  # why the run was not sound before, and still is not; "" for a sound run
    files: tuple[RewrittenFile, ...]  # those that were not indexed, or not complete
    without_views: str = ""  # why the rows have no images, poses and joint states for viewers, or ""


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
    files = tuple(file for name in names if (file := _repair_file(run.path / name, contract)) is not None)
    marks = list(run.manifest.get("repaired") or [])
    if problem and (files or not marks):
        utc = datetime.fromtimestamp(SteadyClock().system_ns() / NS_PER_S, tz=UTC).isoformat(timespec="milliseconds")
        marks.append({"utc": utc, "problem": problem, "files": [asdict(file) for file in files]})
        if read_run(path).manifest != run.manifest:
            raise RecordError("the manifest changed during the repair (expected a run that has ended); repair it again")
        write_json(run.path / MANIFEST, {**run.manifest, "repaired": marks})
    return RepairReport(path=run.path, problem=problem, files=files, without_views=without_views)


def _repair_file(path: Path, contract: Contract | None) -> RewrittenFile | None:
    """Rewrite a file if it is a journal, or not complete."""
    records, journal = McapRecords(path), is_journal(path)
    deque(records, maxlen=0)
    if not journal and not records.problem:
        return None
    if path.name == MESSAGES:
        return rewrite_messages(path, repairs=True)
    return rewrite_log(path, contract if journal else None, repairs=True)
