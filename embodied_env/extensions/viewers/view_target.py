"""Open the program, page, server or file of Rerun or Foxglove that the value of `view` names."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime

from embodied_env.contract import Contract, load_contract
from embodied_env.errors import UsageError
from embodied_env.extensions.viewers.live_view import LiveView, Viewer
from embodied_env.extensions.viewers.robot_geometry import find_geometry
from embodied_env.extensions.viewers.scene import Scene
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.run import Run
from embodied_env.timing.clock import NS_PER_S

EXPECTED = (
    "True, 'web', 'web:PORT', 'FILE.rrd', 'rerun+http://HOST:PORT/proxy', 'foxglove', 'foxglove:PORT' or 'FILE.mcap'"
)
_PORTS = {"web": 9090, "foxglove": 8765}
FILES = (".rrd", ".mcap")
_LATEST_S = 2.0**31  # of a run: beyond, a time stamp of ROS or Foxglove overflows
_ADDRESSES = ("rerun://", "rerun+http://", "rerun+https://")


def checked_view(view: object) -> str:
    """Return the view as text, with a port, or raise UsageError.

    It is refused if it is a file that exists.

    True starts the viewer of Rerun, "spawn", or serves its web viewer if there is no display.
    """
    if view is True:
        view = "spawn" if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else "web"
        if view == "spawn":
            return view
    if isinstance(view, str) and "\0" not in view:
        text = f"{view}:{_PORTS[view]}" if view in _PORTS else view
        kind, _, port = text.partition(":")
        is_port = kind in _PORTS and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
        if text.endswith(FILES) and os.path.lexists(text):
            raise UsageError(f"{text} exists (expected a new file); choose another one")
        if is_port or text.endswith(FILES) or text.startswith(_ADDRESSES):
            return text
    raise UsageError(f"invalid view={view!r} (expected {EXPECTED})")


def open_viewer(where: str, scene: Scene, *, plays: bool = False) -> Viewer:
    """Open the viewer at a checked view.

    With `plays` a server shows the steps of a run at their own speed.

    Raises:
        UsageError: if it cannot be opened.
        MissingDependencyError: if its package is not installed.
    """
    from embodied_env.extensions.viewers.foxglove_viewer import FoxgloveViewer
    from embodied_env.extensions.viewers.rerun_viewer import RerunViewer

    try:
        if where.startswith("foxglove:") or where.endswith(".mcap"):
            return FoxgloveViewer(where, scene, plays=plays)
        return RerunViewer(where, scene)
    except (RuntimeError, OSError, ValueError) as error:
        raise UsageError(f"cannot open the view {where!r}: {error} (expected {EXPECTED})") from None


def open_view(view: object, contract: Contract, *, pacing: str) -> LiveView:
    """Return the observer that shows the steps of an environment.

    Raises like `checked_view` and `open_viewer`.
    """
    where = checked_view(view)
    scene = Scene(contract, geometry=find_geometry(contract), start_ns=time.time_ns(), pacing=pacing)
    return LiveView(scene, open_viewer(where, scene), pacing=pacing)


def scene_of_run(run: Run, *, contract: str | None = None, urdf: str | None = None) -> Scene:
    """Return the scene of a run, without opening a file that the run names.

    `contract` is the name or path of its contract, whose files may be opened. `urdf` is a file with the robot.

    Raises:
        RecordError or ContractError: for a contract that cannot be read.
        UsageError: for a contract that is not that of the run, or a URDF that cannot be read.
    """
    own = contract_of_manifest(run.manifest)
    if contract is not None:
        given, recorded = load_contract(contract), own.fingerprint
        if given.fingerprint != recorded:
            found = f"fingerprint {given.fingerprint[:12]} (expected {recorded[:12]})"
            raise UsageError(f"{contract} is not the contract of {run.path}: {found}")
        own = given
    start_s = 0.0
    with contextlib.suppress(ValueError):  # of a run of another origin
        start_s = datetime.fromisoformat(run.manifest["started_utc"]).timestamp()
    start_ns = round(start_s * NS_PER_S) if 0.0 <= start_s < _LATEST_S else 0
    return Scene(own, geometry=find_geometry(own, urdf), start_ns=start_ns, pacing=run.manifest.get("pacing"))
