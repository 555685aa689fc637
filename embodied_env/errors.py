"""The tree of errors.

::

    EmbodiedEnvError
    ├── ContractError            a contract file or value is wrong          (ValueError)
    ├── UsageError               a call has a wrong argument or option      (ValueError)
    │   └── UnknownOptionError       a call has an unexpected keyword argument  (TypeError)
    ├── MissingDependencyError   an optional package is not installed       (ImportError)
    ├── InternalFaultError       the gate's own post-condition failed
    ├── ResetNeededError         step() outside an episode                  (gymnasium ResetNeeded)
    │   └── SlotEndedError           step() of a vector in which an episode has ended  (AssertionError)
    ├── ClosedError              any call after close()                     (gymnasium ClosedEnvironmentError)
    ├── PolicyError              a policy raised an error of its own
    ├── WireError                a message to or from a policy server is invalid  (ValueError)
    ├── TaskError                a task raised an error, or returned a wrong result
    ├── RecordError              a run cannot be written or read
    ├── NotComparableError       two runs cannot be compared
    ├── CalibrationError         a calibration measured too little
    ├── IdentificationError      recorded runs cannot be used for a fit
    ├── LatencyProfileError      a latency profile is wrong                 (ValueError)
    └── BackendError
        ├── BackendNotReadyError     the world did not start, or a reset could not be verified
        │   ├── SimulatorNotReadyError   a simulator does not behave as its profile declares
        │   └── NotRequestedError        a switch of controllers could not be requested
        ├── BackendLostError         the world stopped responding during an episode
        └── HostLostError            the process or the node of an evaluation's worker has ended

Messages name what failed, its value and what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import gymnasium.error

EXTRAS: Mapping[str, str] = {
    "rclpy": "ros",
    "mujoco": "sim",
    "pillow": "images",
    "mcap": "record",
    "orjson": "record",
    "scipy": "analysis",
    "jinja2": "report",
    "pettingzoo": "multi",
    "onnxruntime": "onnx",
    "msgpack": "remote",
    "pyzmq": "remote",
    "websockets": "remote",
    "stable-baselines3": "train",
    "ray": "scale",
    "pyarrow": "parquet",
    "minari": "minari",
    "rerun-sdk": "view",
    "foxglove-sdk": "foxglove",
}
"""Optional package -> the smallest extra of this package that installs it."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""Escape control characters, line ends, bidirectional controls and lone surrogates.

    Those in `keep` stay as they are. ESC becomes ``\u001b``, and JSON text stays JSON of the same value.
    """
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


class EmbodiedEnvError(Exception):
    """Base class of every error raised by this package on purpose."""


class ContractError(EmbodiedEnvError, ValueError):
    """A contract is wrong, with the `problem` at the YAML `path` of `source`.

    A path is ``actuators.arm.joints.j1.position``. `others` are further errors of the same contract, found
    independently of this one.
    """

    def __init__(self, path: str, problem: str, *, source: str = "", others: Sequence[ContractError] = ()) -> None:
        """Describe the `problem` at `path` in the file `source`."""
        self.others = tuple(others)
        self.path = path
        self.problem = problem
        self.source = source
        super().__init__(": ".join(part for part in (source, path, problem) if part))


class UsageError(EmbodiedEnvError, ValueError):
    """A call has a wrong argument or option."""


class UnknownOptionError(UsageError, TypeError):
    """A call has an unexpected keyword argument, with the text that some libraries look for."""


class MissingDependencyError(EmbodiedEnvError, ImportError):
    """An optional dependency is missing, with the command that installs it in the message."""

    def __init__(self, package: str, *, needed_for: str, remedy: str = "") -> None:
        """Name the missing `package` or "package (cause)", its use and the remedy or extra."""
        remedy = remedy or install_command(package.partition(" ")[0])
        super().__init__(f"{needed_for} needs {package}, which is not installed; {remedy}")


def install_command(package: str) -> str:
    """Return the command that installs a package, such as ``pip install "embodied_env[sim]"``."""
    return f'pip install "embodied_env[{EXTRAS[package]}]"'


class InternalFaultError(EmbodiedEnvError):
    """The gate's post-condition on the values to publish failed, so that nothing was published."""


class ResetNeededError(EmbodiedEnvError, gymnasium.error.ResetNeeded):
    """`step` was called outside an episode, so that nothing was published."""


class SlotEndedError(ResetNeededError, AssertionError):
    """`step` of a vector environment without autoreset in which an episode has ended."""


class ClosedError(EmbodiedEnvError, gymnasium.error.ClosedEnvironmentError):
    """The environment is closed, so that nothing was published."""


class PolicyError(EmbodiedEnvError):
    """A policy raised an error of its own."""


class TaskError(EmbodiedEnvError):
    """A task raised an error or returned a wrong result, which ends with ``task_error:<why>``."""

    def __init__(self, message: str, *, why: str = "wrong_result") -> None:
        """Describe the error, where `why` is the class of the task's own error."""
        self.why = why
        super().__init__(message)


class RecordError(EmbodiedEnvError):
    """A run directory cannot be written or read."""


class BackendError(EmbodiedEnvError):
    """The world behind the environment failed."""


class BackendNotReadyError(BackendError, TimeoutError):
    """The world did not start in time, or a reset could not be verified."""


class BackendLostError(BackendError):
    """The world stopped responding in an episode, which ends with ``backend_lost:<why>``."""

    def __init__(self, why: str, detail: str) -> None:
        """Describe the loss by its reason `why` and `detail`."""
        self.why = why
        super().__init__(f"{why}: {detail}")

    @classmethod
    def of(cls, error: BackendError) -> BackendLostError:
        """Return `error` as a loss of the world."""
        return error if isinstance(error, cls) else cls(type(error).__name__, str(error))


def described(error: BaseException) -> str:
    """Return type and text of any error in one line, even if its own `__str__` fails."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the error of foreign code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def did_you_mean(value: object, names: Iterable[str], meant: str = "") -> str:
    """Return "; did you mean 'NAME'?" for `meant` or the closest name, or "" without one."""
    known = list(names)
    if meant not in known:
        meant = "" if value in known else "".join(difflib.get_close_matches(str(value), known, n=1))  # most checks hold
    return f"; did you mean {meant!r}?" if meant else ""
