"""Export of a run to a format of other tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from embodied_env._version import __version__
from embodied_env.core.plugin_loading import load_plugin
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.export.exported_episodes import (
    DRY_RUN,
    THE_SOURCES,
    EpisodeEnd,
    EpisodeReader,
    ExportedStep,
    open_episodes,
)
from embodied_env.plugins.plugin_lookup import get_plugin
from embodied_env.plugins.plugin_table import BUILT_IN
from embodied_env.record.manifest import world_of
from embodied_env.record.run import read_run

__all__ = ["FORMATS", "export_run"]
EXPORT = "embodied_env/export/1"


class Exporter(Protocol):
    """Writes one format, made from an empty folder, an `EpisodeReader` and an `ExitStack`."""

    def step(self, step: ExportedStep) -> None: ...

    def end(self, ending: EpisodeEnd) -> None: ...  # the episode of the steps so far

    def close(self, metadata: Mapping[str, Any]) -> None: ...  # of the export


FORMATS = tuple(BUILT_IN["exporters"])  # besides plug-ins of the group ``embodied_env.exporters``


def export_run(  # noqa: PLR0913 - the public options
    path: str | Path,
    out: str | Path,
    *,
    format: str,  # noqa: A002 - the name of the option of the command line
    evaluator: bool = False,
    allow_unclean: bool = False,
    environment_state: Collection[str] | None = None,
    split_at_gaps: bool = False,
    allow_dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Export the run directory `path` into the new folder `out`, and return its metadata.

    It is written to ``OUT.partial``, which is renamed once it is complete.

    Args:
        path: a run directory.
        out: a folder that does not exist yet.
        format: one of `FORMATS`, or that of another package.
        evaluator: include the values visible only to the evaluator.
        allow_unclean: accept a run that was not closed, or whose log is truncated; the metadata has the reason.
        environment_state: keys of the observation in LeRobot's ``observation.environment_state``; None: those that do
            not measure the robot itself.
        split_at_gaps: leave out the steps without an action, and cut the episode there; False: their action is what
            was applied.
        allow_dry_run: accept a dry run, whose actions were not executed; each is marked by its source.
        progress: called with the number of steps so far.

    Raises:
        UsageError: for an unknown format or key, or if `out` or ``OUT.partial`` exists.
        RecordError: if the run cannot be read, is not clean, or a dry run, or the action of a step is not known.
        MissingDependencyError: if the library of the format is not installed.
    """
    make_exporter = load_plugin(get_plugin("exporters", format), f"the format {format!r}")
    if environment_state is not None and format != "lerobot":
        raise UsageError(f"environment_state is not in the format {format!r} (expected lerobot)")
    options = {} if environment_state is None else {"environment_state": environment_state}
    out = Path(out)
    partial = out.with_name(f"{out.name}.partial")
    for taken in (out, partial):
        if taken.exists() or taken.is_symlink():
            raise UsageError(f"the output folder exists: {taken} (expected a new folder)")
    run = read_run(path)
    if run.problem and not allow_unclean:
        remedy = "export its complete rows with allow_unclean (--allow-unclean)"
        raise RecordError(f"run {path} is not clean: {run.problem}; {remedy}")
    if world_of(run.manifest) == DRY_RUN and not allow_dry_run:
        remedy = "export it with allow_dry_run (--allow-dry-run)"
        raise RecordError(f"run {path} is a dry run: no action was executed; {remedy}")
    source = open_episodes(run, evaluator=evaluator, split_at_gaps=split_at_gaps)
    try:
        partial.mkdir(parents=True)
        with ExitStack() as files:  # closes the open files if the export fails
            metadata = _write(make_exporter(partial, source, files, **options), source, format, progress)
        partial.rename(out)
    except OSError as error:
        raise RecordError(f"cannot write the export {out}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return metadata


def _write(
    exporter: Exporter, source: EpisodeReader, kind: str, progress: Callable[[int], None] | None
) -> dict[str, Any]:
    counts = {"episodes": 0, "unfinished": 0, "steps": 0}
    for item in source:
        if isinstance(item, ExportedStep):
            exporter.step(item)
            counts["steps"] += 1
            if progress is not None:
                progress(counts["steps"])
        else:
            exporter.end(item)
            counts["episodes"] += 1
            counts["unfinished"] += not item.ended
    manifest = source.run.manifest
    metadata = {
        "schema": EXPORT,
        "format": kind,
        "embodied_env": __version__,
        "run_id": manifest["run_id"],
        "contract": {key: manifest["contract"][key] for key in ("name", "version", "fingerprint")},
        "backend": manifest["backend"],
        "world": world_of(manifest),
        "pacing": manifest["pacing"],
        "policy": manifest["policy"],
        "wrappers": [layer["class"] for layer in manifest["wrappers"]],
        "spaces_read_off_rows": source.has_wrappers,
        "control_period_s": source.contract.control_period_s,
        "clean": source.run.clean,
        "problem": source.run.problem,
        "evaluator": bool(source.evaluator),
        **counts,
        "gaps": source.gaps,
        "split_at_gaps": source.split_at_gaps,
        "action_sources": dict(source.sources),
        "the_action_sources": THE_SOURCES,
        "left_out": dict(source.left_out),
    }
    exporter.close(metadata)
    return metadata
