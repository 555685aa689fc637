"""Checks of a ROS 2 installation, for use by rclpy and by ``ros2 launch``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from embodied_env.errors import EmbodiedEnvError, MissingDependencyError, UsageError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.setup_checks import rclpy_import_errors

_PACKAGE = "embodied_env"
_START_S = 20.0  # of another interpreter


def ros_checks(*, is_required: bool = False) -> Iterator[Check]:
    """Check rclpy and the message packages with the installed NumPy, without starting anything.

    Without a sourced ROS 2, a missing rclpy fails only if it `is_required`, since the package also runs without one.
    """
    try:
        with rclpy_import_errors("ROS 2"):
            import rclpy  # noqa: PLC0415 - optional
            from rclpy.type_support import check_for_type_support  # noqa: PLC0415
    except UsageError as error:
        yield failed("rclpy", str(error), "", "environment")
        return
    except EmbodiedEnvError as error:
        if sourced := sourced_prefixes():
            detail = f"{sourced[0]} is sourced, and this Python cannot import its rclpy: {error.__context__}"
            remedy = f"create the virtual environment with the Python of {sourced[0]}, and source its setup.bash"
            yield failed("rclpy", detail, remedy, "missing")
        else:
            yield Check(name="rclpy", passed=False if is_required else None, detail=str(error), code="missing")
        return
    folder, wheels = Path(rclpy.__file__).resolve().parents[1], _folder_of_wheels()
    origin = "wheels of the extra ros" if folder == wheels else os.environ.get("ROS_DISTRO") or "ROS_DISTRO unset"
    yield passed("rclpy", f"{folder} ({origin})")
    others = [*sourced_prefixes(), *([] if folder == wheels else [folder])]
    if wheels is not None and others:
        detail = f"wheels in {wheels}, and another ROS 2 in {others[0]}: their libraries do not fit together"
        remedy = "open a shell without sourced ROS 2, or create a virtual environment without the extra ros"
        yield failed("one ROS 2", detail, remedy, "ros.mixed")
    try:
        check_for_type_support(message_class("sensor_msgs/msg/JointState"))
    except MissingDependencyError as error:
        yield failed("messages", str(error), "", "missing")
    except Exception as error:  # noqa: BLE001 - rclpy and NumPy raise several types
        detail = f"sensor_msgs cannot be loaded with NumPy {version('numpy')}: {type(error).__name__}"
        remedy = 'pip install "numpy<2": the ROS 2 packages of Ubuntu 24.04 are built with NumPy 1.26'
        yield failed("messages", detail, remedy, "messages")
    else:
        yield passed("messages", f"loaded with NumPy {version('numpy')}")
    yield passed("RMW_IMPLEMENTATION", rclpy.get_rmw_implementation_identifier())


def _folder_of_wheels() -> Path | None:
    try:
        return Path(str(distribution("ros-rclpy").locate_file(""))).resolve()
    except PackageNotFoundError:
        return None


def _prefixes() -> list[Path]:
    return [Path(each) for each in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if each]


def sourced_prefixes() -> list[Path]:
    """Return the prefixes of other installations of ROS 2 than the wheels of this environment."""
    own = Path(sys.prefix).resolve()
    return [each for each in _prefixes() if each.resolve() != own and (each / "share/rclpy/package.xml").is_file()]


def launch_checks() -> Iterator[Check]:
    """Check the requirements of ``ros2 launch`` and ``ros2 run``."""
    marker = Path("share/ament_index/resource_index/packages", _PACKAGE)
    found = next((prefix for prefix in _prefixes() if (prefix / marker).is_file()), None)
    if found is None:
        detail = f"{_PACKAGE} is not in AMENT_PREFIX_PATH: ros2 launch and ros2 run do not find it"
        remedy = f'export AMENT_PREFIX_PATH="{sys.prefix}:$AMENT_PREFIX_PATH"'
        if not Path(sys.prefix, marker).is_file():
            remedy = f"install the package again, with pip or colcon: {Path(sys.prefix, marker)} does not exist"
        check = failed("ament index", detail, remedy, "ament" if _prefixes() else "")
        yield check if sourced_prefixes() else replace(check, passed=None)
    else:
        yield passed("ament index", str(found / "share" / _PACKAGE))
    if (ros2 := shutil.which("ros2")) is None:
        yield Check(name="ros2", passed=None, detail="not on PATH; embodied-env launch works without it")
        return
    interpreter = _interpreter_of(Path(ros2))
    detail, remedy = f"{ros2} runs on {interpreter}", ""
    can_import = interpreter == sys.executable or _imports_package(interpreter)
    if not can_import:
        detail += f", which cannot import {_PACKAGE}"
        remedy = f"python3 {ros2} launch {_PACKAGE} ..., in this environment; or embodied-env launch ..."
    yield Check(name="ros2", passed=can_import or None, detail=detail, remedy=remedy)


def _interpreter_of(script: Path) -> str:
    """Return the interpreter in the first line of a script, "" without one."""
    with script.open("rb") as file:
        line = file.readline(256)
    words = line.decode(errors="replace").removeprefix("#!").split() if line.startswith(b"#!") else []
    return (shutil.which(words[-1]) or "") if len(words) > 1 else "".join(words)


def _imports_package(interpreter: str) -> bool:
    try:
        command = [interpreter, "-c", f"import {_PACKAGE}"]
        return subprocess.run(command, capture_output=True, timeout=_START_S, check=False).returncode == 0  # noqa: S603 - that of ros2
    except (OSError, subprocess.TimeoutExpired):
        return False
