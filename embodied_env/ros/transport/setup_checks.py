"""Check ROS 2 environment and node options, whose invalid values may end the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
from collections.abc import Iterator, Sequence

from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError, install_command

_WRONG_ARGUMENTS = ("RCLInvalidROSArgsError", "UnknownROSArgsError")  # rclpy has no public names for them
_MAX_DOMAIN_ID = 232  # the DDS port numbers end there
_NODE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMESPACE = re.compile(r"/|(/[A-Za-z_][A-Za-z0-9_]*)+")


def _check_ros_environment() -> None:
    """Raise UsageError for an invalid domain ID or RMW, at which rcl exits silently."""
    if domain := os.environ.get("ROS_DOMAIN_ID"):
        check_domain_id(domain, "ROS_DOMAIN_ID")
    if middleware := os.environ.get("RMW_IMPLEMENTATION"):
        try:
            ctypes.CDLL(f"lib{middleware}.so")
        except OSError as error:
            expected = "(expected an installed one, or unset)"
            raise UsageError(f"RMW_IMPLEMENTATION={middleware!r} cannot be loaded: {error} {expected}") from None


@contextlib.contextmanager
def rclpy_import_errors(needed_for: str) -> Iterator[None]:
    """Check the environment for imports of ROS packages, and report what a missing one is for."""
    _check_ros_environment()
    try:
        yield
    except MissingDependencyError:
        raise
    except ImportError as error:
        remedy = f"{install_command('rclpy')}, or apt install {apt_package('rclpy')} and source its setup.bash"
        raise MissingDependencyError(f"rclpy ({error})", needed_for=needed_for, remedy=remedy) from None


@contextlib.contextmanager
def ros_init_errors(*passed: type[Exception]) -> Iterator[None]:
    """Raise BackendNotReadyError for an error of ROS 2's initialisation, unless in `passed`.

    ROS arguments that rcl cannot parse raise UsageError.
    """
    try:
        yield
    except passed:
        raise
    except Exception as error:  # rclpy raises its own RCLError and many others
        if type(error).__name__ in _WRONG_ARGUMENTS:
            expected = "(expected what may follow --ros-args; check ros_args and the command line)"
            raise UsageError(f"invalid ROS arguments: {error} {expected}") from None
        hint = "check that the log folder is writable, or set ROS_LOG_DIR"
        raise BackendNotReadyError(f"ROS 2 cannot be initialised: {error} ({hint})") from error


def check_domain_id(value: str | int, name: str) -> None:
    """Raise UsageError unless `value` is a valid ROS domain ID."""
    text = str(value)
    if not text.isdecimal() or int(text) > _MAX_DOMAIN_ID:
        raise UsageError(f"invalid {name}={value!r} (expected 0 to {_MAX_DOMAIN_ID})")


def check_namespace(value: str) -> None:
    """Raise UsageError unless `value` is an absolute ROS namespace."""
    if not isinstance(value, str) or _NAMESPACE.fullmatch(value) is None:
        raise UsageError(f"invalid namespace {value!r} (expected / or an absolute name such as /robot_1)")


def check_namespace_and_domain(namespace: str | None, domain_id: int | None) -> None:
    """Raise UsageError for an invalid namespace or domain ID, which may be None (default)."""
    if namespace is not None:
        check_namespace(namespace)
    if domain_id is not None:
        check_domain_id(domain_id, "domain_id")


def check_node_name(value: str) -> None:
    """Raise UsageError unless `value` is a valid ROS node name."""
    if not isinstance(value, str) or _NODE_NAME.fullmatch(value) is None:
        raise UsageError(f"invalid node_name {value!r} (expected letters, digits and _, not starting with a digit)")


def ros_arguments(args: Sequence[str]) -> list[str]:
    """Return `args` as command-line arguments of rcl, parsed when the node is created."""
    if not isinstance(args, (list, tuple)) or not all(isinstance(arg, str) for arg in args):
        raise UsageError(f"invalid ros_args={args!r} (expected a list of strings, e.g. ['-r', 'from:=to'])")
    return [] if not args else ["--ros-args", *(args[1:] if args[0] == "--ros-args" else args)]


def timeout_s(name: str, option: float | None, default: float) -> float:
    """Return the timeout `option` or, if None, `default`, or raise UsageError if invalid."""
    return checked_seconds(name, default if option is None else option)


def unique_namespace() -> str:
    """Return a namespace that no other process uses."""
    return f"/embodied_env_{os.getpid()}_{secrets.token_hex(4)}"


def apt_package(package: str) -> str:
    """Return the apt name of a ROS package."""
    return f"ros-{os.environ.get('ROS_DISTRO') or 'jazzy'}-{package.replace('_', '-')}"
