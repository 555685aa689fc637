"""`export_run`: a run in a format that others read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from embodied_env._version import __version__
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.export.episodes import EpisodeEnd, EpisodeReader, Step, open_episodes
from embodied_env.record.export.json_lines import JsonLines
from embodied_env.record.export.lerobot import LerobotDataset
from embodied_env.record.export.minari import MinariDataset
from embodied_env.record.export.parquet import ParquetFiles
from embodied_env.record.run import read_run

EXPORT = "embodied_env/export/1"

FORMATS = ("jsonl", "parquet", "minari", "lerobot")


class Writer(Protocol):
    """Writes one format into a folder that is there, and empty."""

    def step(self, step: Step) -> None:
        """Take in one step."""
        ...

    def end(self, ending: EpisodeEnd) -> None:
        """Take in the end of the episode whose steps were taken in."""
        ...

    def close(self, account: Mapping[str, Any]) -> None:
        """Finish; `account` says what was exported."""
        ...

    def abort(self) -> None:
        """Let go of every file. Idempotent."""
        ...


def export_run(
    path: str | Path,
    out: str | Path,
    *,
    format: str,  # noqa: A002 - the word that the command line has too
    evaluator: bool = False,
    allow_unclean: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Export the run directory `path` into the new folder `out`, and return what was exported.

    It is written beside `out`, as ``OUT.partial``, and renamed when it is whole.

    Args:
        path: a run directory.
        out: a folder that is not there yet.
        format: one of `FORMATS`.
        evaluator: with what only the evaluator saw.
        allow_unclean: also a run that was not closed, or whose log is cut; that is said in the metadata.
        progress: told the number of steps so far, now and then.

    Raises:
        UsageError: for a format that there is not, or where `out` or ``OUT.partial`` is there already.
        RecordError: when the run cannot be read, or is not clean.
        MissingDependencyError: when the library of the format is not installed.
    """
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is not known; allowed: {', '.join(FORMATS)}")
    out = Path(out)
    partial = _place_beside(out)
    run = read_run(path)
    if run.problem and not allow_unclean:
        raise RecordError(f"{path} is not clean: {run.problem}; --allow-unclean exports what is whole")
    source = open_episodes(run, evaluator=evaluator)
    try:
        partial.mkdir(parents=True)
        account = _written(partial, source, format, out.name, progress or (lambda _steps: None))
        partial.rename(out)
    except OSError as error:
        raise RecordError(f"{out}: the export cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return account


def _place_beside(out: Path) -> Path:
    partial = out.with_name(f"{out.name}.partial")
    for taken in (out, partial):
        if taken.exists() or taken.is_symlink():
            raise UsageError(f"{taken} is there already; allowed: a folder that is not")
    return partial


def _written(
    folder: Path, source: EpisodeReader, kind: str, name: str, progress: Callable[[int], None]
) -> dict[str, Any]:
    writer = _writer(kind, folder, source, name)
    counts = {"episodes": 0, "unfinished": 0, "steps": 0}
    try:
        for item in source:
            if isinstance(item, Step):
                writer.step(item)
                counts["steps"] += 1
                progress(counts["steps"])
            else:
                writer.end(item)
                counts["episodes"] += 1
                counts["unfinished"] += not item.ended
        account = _account(source, kind, counts)
        writer.close(account)
    finally:
        writer.abort()
    return account


def _writer(kind: str, folder: Path, source: EpisodeReader, name: str) -> Writer:
    if kind == "jsonl":
        return JsonLines(folder, source)
    if kind == "parquet":
        return ParquetFiles(folder, source)
    return MinariDataset(folder, source, name=name) if kind == "minari" else LerobotDataset(folder, source)


def _account(source: EpisodeReader, kind: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return what was exported, and from what; for the metadata."""
    manifest = source.run.manifest
    return {
        "schema": EXPORT,
        "format": kind,
        "embodied_env": __version__,
        "run_id": manifest["run_id"],
        "contract": {key: manifest["contract"][key] for key in ("name", "version", "fingerprint")},
        "backend": manifest["backend"],
        "pacing": manifest["pacing"],
        "policy": manifest["policy"],
        "wrappers": [layer["class"] for layer in manifest["wrappers"]],
        "spaces_read_off_rows": source.has_wrappers,
        "control_period_s": source.contract.control_period_s,
        "clean": source.run.clean,
        "problem": source.run.problem,
        "evaluator": bool(source.evaluator),
        **counts,
        "left_out": dict(source.left_out),
    }


__all__ = ["FORMATS", "export_run"]
