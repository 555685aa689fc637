"""What must be right in the surroundings before rclpy is imported: some mistakes end the whole process from C."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
from collections.abc import Iterator, Sequence

from embodied_env.core.arguments import checked_seconds
from embodied_env.errors import MissingDependencyError, UsageError

LOG_HINT = "is the log folder writable? set ROS_LOG_DIR"

_MAX_DOMAIN_ID = 232  # beyond it the ports of DDS do not fit
_NODE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMESPACE = re.compile(r"/|(/[A-Za-z_][A-Za-z0-9_]*)+")


def check_ros_environment() -> None:
    """Check ``ROS_DOMAIN_ID`` and ``RMW_IMPLEMENTATION``; with a wrong one rcl ends the process without a word.

    Raises:
        UsageError: naming the variable, its value, and what is allowed.
    """
    domain = os.environ.get("ROS_DOMAIN_ID", "")
    if domain:
        check_domain_id(domain, "ROS_DOMAIN_ID")
    middleware = os.environ.get("RMW_IMPLEMENTATION", "")
    if middleware:
        try:
            ctypes.CDLL(f"lib{middleware}.so")
        except OSError as error:
            raise UsageError(
                f"RMW_IMPLEMENTATION={middleware!r} cannot be loaded: {error}; allowed: one that is installed, or unset"
            ) from None


@contextlib.contextmanager
def rclpy_import_errors(needed_for: str) -> Iterator[None]:
    """Around the imports of rclpy and its packages: check the surroundings first, and name what is missing.

    Raises:
        UsageError: for surroundings in which rclpy would end the process (`check_ros_environment`).
        MissingDependencyError: saying what it is needed for.
    """
    check_ros_environment()
    try:
        yield
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"rclpy ({error})",
            needed_for=needed_for,
            remedy='pip install "embodied_env[ros]", or source a ROS 2 installation',
        ) from None


def check_domain_id(value: str | int, name: str) -> None:
    """Raise UsageError unless `value` is a ROS domain id."""
    text = str(value)
    if not text.isdecimal() or int(text) > _MAX_DOMAIN_ID:
        raise UsageError(f"{name}={value!r} is not allowed; allowed: 0 to {_MAX_DOMAIN_ID}")


def check_namespace(value: str) -> None:
    """Raise UsageError unless `value` is an absolute ROS namespace."""
    if not isinstance(value, str) or _NAMESPACE.fullmatch(value) is None:
        raise UsageError(f"namespace {value!r} is not allowed; allowed: / or absolute, like /robot_1")


def check_namespace_and_domain(namespace: str | None, domain_id: int | None) -> None:
    """Raise UsageError for a namespace or a domain that is none; None is what the surroundings say."""
    if namespace is not None:
        check_namespace(namespace)
    if domain_id is not None:
        check_domain_id(domain_id, "domain_id")


def unique_namespace() -> str:
    """Return a namespace that nobody else has."""
    return f"/embodied_env_{os.getpid()}_{secrets.token_hex(4)}"


def apt_package(package: str) -> str:
    """Return the name of a ROS package in apt."""
    return f"ros-{os.environ.get('ROS_DISTRO') or 'jazzy'}-{package.replace('_', '-')}"


def check_node_name(value: str) -> None:
    """Raise UsageError unless `value` is the name of a ROS node."""
    if not isinstance(value, str) or _NODE_NAME.fullmatch(value) is None:
        raise UsageError(f"node_name {value!r} is not allowed; allowed: letters, digits and _, no digit first")


def ros_arguments(args: Sequence[str]) -> list[str]:
    """Return `args` as rcl reads them; it checks what they say when a node is made.

    Raises:
        UsageError: for what is no list of texts.
    """
    if not isinstance(args, (list, tuple)) or not all(isinstance(arg, str) for arg in args):
        raise UsageError(f"ros_args={args!r} is not allowed; allowed: a list of text, e.g. ['-r', 'from:=to']")
    return [] if not args else ["--ros-args", *(args[1:] if args[0] == "--ros-args" else args)]


def timeout_s(name: str, option: float | None, default: float) -> float:
    """Return the timeout called `name`: the option, else the default; raises UsageError for what is none."""
    return checked_seconds(name, default if option is None else option)
