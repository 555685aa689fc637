"""Check the installed versions of Gazebo and of its bridge against the ROS 2 distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.setup_checks import apt_package

GAZEBO_OF: Mapping[str, int] = {"jazzy": 8, "kilted": 9, "lyrical": 10, "rolling": 10}
"""ROS 2 distribution -> major version of gz-sim that its packages use."""

_OLDEST = 8  # the first that can reset a world and be controlled exactly by the shipped worlds
_TIMEOUT_S = 20.0
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")


def version_checks() -> Iterator[Check]:
    """Yield a check of gz-sim and one of ros_gz_bridge on this host.

    The server may run on another.
    """
    yield _gazebo_check(os.environ.get("ROS_DISTRO", ""))
    prefixes = filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep))
    manifests = (Path(prefix, "share", "ros_gz_bridge", "package.xml") for prefix in prefixes)
    text = next((manifest.read_text(encoding="utf-8") for manifest in manifests if manifest.is_file()), "")
    if (found := re.search(r"<version>([^<]+)</version>", text)) is None:
        remedy = f"apt install {apt_package('ros_gz_bridge')}, and source its setup.bash"
        yield Check(name="ros_gz_bridge", passed=None, detail="not installed on this host", remedy=remedy)
    else:
        yield passed("ros_gz_bridge", found[1])


def _gazebo_check(distribution: str) -> Check:
    program = shutil.which("gz")
    if program is None:
        return Check(name="gz sim", passed=None, detail="not installed on this host")
    try:
        command = [program, "sim", "--versions"]
        printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S).stdout  # noqa: S603 - the installed gz
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed("gz sim", f"`gz sim --versions` failed: {error}", "reinstall Gazebo", "gz.version")
    versions = _VERSION.findall(printed)
    if not versions:  # gz-tools alone has `gz`, but no `sim`
        remedy = f"install gz-sim: apt install {apt_package('ros_gz')}, or gz-harmonic"
        return failed("gz sim", "`gz sim --versions` printed no version", remedy, "gz.version")
    newest = max(versions, key=lambda version: int(version.partition(".")[0]))
    major, expected = int(newest.partition(".")[0]), GAZEBO_OF.get(distribution)
    if major < _OLDEST:
        remedy = "install Harmonic (8) or newer"
        return failed("gz sim", f"version {newest} (expected {_OLDEST} or newer)", remedy, "gz.version")
    if expected is not None and major != expected:
        detail = f"version {newest} (the packages of {distribution} use {expected})"
        return Check(name="gz sim", passed=None, detail=detail, remedy="use one Gazebo for server and bridge")
    return passed("gz sim", f"version {newest}")
