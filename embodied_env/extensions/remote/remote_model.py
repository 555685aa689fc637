"""Models on policy servers, with addresses, deadlines, checked answers and accounts.

A step never waits beyond its deadline, and the failure of a server is never an exception: `RemoteModel.infer` returns
`NoAction`, counts the failure and drops the connection, so that a later answer belongs to no request.

Around it: `policy_messages` has the message formats, `websocket` a connection, `openpi_model` and `gr00t_model` the
protocols.
"""

from __future__ import annotations

import os
import socket
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import version
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.contract.bounded_json import plain_copy
from embodied_env.core.policy import NoAction, PolicyIdentity
from embodied_env.errors import UsageError, described
from embodied_env.extensions.remote.policy_messages import WireError, keep_freed_memory, pack, unpack
from embodied_env.policies.policy_loader import parse_server
from embodied_env.policies.policy_model import ArraySpec, Inputs, PolicyModel

CONNECT_TIMEOUT_S, TIMEOUT_S = 30.0, 1.0
"""Default limits of connecting and of the first inference, which may compile the model, and of the others."""

_MOST_CHARACTERS, _MOST_BYTES = 2**14, 2**16  # of the metadata of a server, as JSON and as received
_LONGEST_CHUNK = 2**12


class Problem(StrEnum):
    """Kinds of failures, which are counted per episode."""

    LATE = "late"  # no answer before the deadline
    LOST = "lost"  # no connection
    FOREIGN = "foreign"  # answer to no request, to another one, or of another model
    MALFORMED = "malformed"  # answer of a wrong format or shape, too large, or not finite
    REFUSED = "refused"  # error reported by the server


class Failure(Exception):  # noqa: N818 - no error of a caller
    """A server has given no valid answer."""

    def __init__(self, problem: Problem, reason: str) -> None:
        self.problem = problem
        super().__init__(NoAction(reason).reason)  # one line, since it may come from a server


class RemoteModel(PolicyModel):
    """A model on a server, whose failures become `NoAction`.

    Attributes:
        protocol: name of the message format and of the scheme of addresses.
        package: library that connects.
        inputs, outputs, fingerprint, instruction, required_sensors, policy_file: those of the served model and its
            contract, if the server announces them.
    """

    protocol: ClassVar[str]
    package: ClassVar[str]
    default_port: ClassVar[int]
    inputs: Mapping[str, ArraySpec] | None = None
    outputs: Mapping[str, ArraySpec] | None = None
    fingerprint: str | None = None
    instruction: str | None = None
    required_sensors: tuple[str, ...] = ()
    policy_file: str | None = None

    def __init__(self, location: str, **options: Any) -> None:  # noqa: ANN401 - of the protocol
        """Check location and time limits without connecting, or raise UsageError."""
        self.address = f"{self.protocol}:{location}"
        self.host, self.port = parse_server(self.address, self.default_port)
        self.options = options
        self._has_default_timeout = self.options["timeout_s"] is None
        self.options["timeout_s"] = TIMEOUT_S if self._has_default_timeout else self.options["timeout_s"]
        self._connect_timeout_s, self._timeout_s = (
            checked_seconds(key, self.options[key]) for key in ("connect_timeout_s", "timeout_s")
        )
        keep_freed_memory()
        self._epoch = self._step = 0  # number of the episode on this object, and of the inference in it
        self._reset: dict[str, int] | None = None  # reset of an episode in which no answer has arrived
        self._problems: Counter[str] = Counter()
        self._account: dict[str, float | None] | None = None
        self._expected: Mapping[str, ArraySpec] | None = None  # arrays of an answer
        self._last: tuple[int, Mapping[str, NDArray[Any]]] | None = None  # step and outputs of the last answer
        self._metadata: Mapping[str, Any] | None = None
        self._is_warm = self._is_closed = self._is_busy = False  # warm: an answer has arrived
        self._pid = os.getpid()

    @property
    def netloc(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def open(self) -> Self:
        """Connect to the server, which may not have started yet, or raise UsageError if that fails."""
        try:
            self._greet(time.monotonic() + self._connect_timeout_s)
        except BaseException as error:
            self.close()
            if not isinstance(error, Failure):
                raise
            expected = f"expected a policy server that answers within {self._connect_timeout_s:g} s"
            text = f"cannot connect to {self.address}: {error} ({expected}); start it, or correct the address"
            raise UsageError(text) from None
        library = f"{self.package} {version(self.package)}"
        self.identity = PolicyIdentity(name=self.address, format=self.protocol, library=library, server=self._metadata)
        return self

    def check_contract(self, contract: Contract, /) -> None:
        """Raise UsageError if the server announces another contract or needs a policy file."""
        label = f"policy {self.identity.name!r} is served"
        if self.fingerprint not in (None, contract.fingerprint):
            expected = f"expected {contract.fingerprint:.12}, {contract.name}"
            problem = f"{label} for another contract: {self.fingerprint!s:.12} ({expected})"
            raise UsageError(f"{problem}; serve it with --contract for this one")
        if self.instruction not in (None, contract.task.instruction):
            expected = f"expected {contract.task.instruction!r}, of {contract.name}"
            problem = f"{label} for another task.instruction: {self.instruction!r:.80} ({expected})"
            raise UsageError(f"{problem}; serve it with --contract for this one")
        if self.policy_file is not None:
            expected = "expected policy_file or --policy-file"
            problem = f"{label} without its policy file: {self.policy_file!s:.80} ({expected})"
            raise UsageError(f"{problem}; name a copy of it here, or serve it with --contract")

    def instruct(self, instruction: str, /) -> bool:
        """Raise UsageError for another prompt than that of the server's contract, if any."""
        if self.instruction not in (None, instruction):
            problem = f"policy {self.identity.name!r} is served with one prompt: {self.instruction!r:.80}"
            raise UsageError(f"{problem} (expected {instruction!r:.80}); serve it without --contract")
        return False

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Begin an episode, whose first request carries the reset if the protocol has a key for it."""
        self._epoch, self._step = self._epoch + 1, 0
        self._reset = {"seed": int(seed), "episode_index": int(episode_index)}
        self._problems.clear()
        self._account = self._last = None

    def infer(self, inputs: Inputs, /) -> dict[str, NDArray[Any]] | NoAction:
        """Return the outputs of one inference, or why there are none before the deadline."""
        begun_s = time.monotonic()
        deadline_s = begun_s + (self._timeout_s if self._is_warm else self._connect_timeout_s)
        self._step += 1
        account = self._account = dict.fromkeys(("encode_s", "wire_s", "server_s", "decode_s"))
        self._is_busy = True
        try:
            if self._is_closed:
                return NoAction("policy is closed")
            if self._pid != os.getpid():  # a fork has inherited the connection
                self._disconnect()
                self._pid = os.getpid()
            request = self._encode(inputs)
            sent_s = time.monotonic()
            account["encode_s"] = sent_s - begun_s
            answer = self._exchange(request, deadline_s)
            arrived_s = time.monotonic()
            values, server_s = self._decode(answer)
            outputs = self._check(values)
            if (done_s := time.monotonic()) > deadline_s:
                raise Failure(Problem.LATE, "no answer in time")  # noqa: TRY301 - as the others
        except UsageError:  # of the inputs
            raise
        except Exception as error:  # noqa: BLE001 - whatever a server did, it is no error of an episode
            failure = error if isinstance(error, Failure) else Failure(Problem.MALFORMED, described(error))
            self._problems[failure.problem] += 1
            if not self._may_continue(failure):
                self._disconnect()
            return NoAction(str(failure))
        finally:
            self._is_busy = False
            if self._is_closed:
                self._disconnect()
        if server_s is not None and not 0.0 <= server_s <= arrived_s - sent_s:
            server_s = None  # a clock was set
        account["wire_s"] = arrived_s - sent_s - (server_s or 0.0)
        account["server_s"], account["decode_s"] = server_s, done_s - arrived_s
        self._reset, self._is_warm, self._last = None, True, (self._step, outputs)
        return outputs

    def bound_wait(self, limit_s: float, /) -> float:
        """Implement `BoundedPolicy.bound_wait`."""
        if self._has_default_timeout and limit_s > 0.0:
            self._timeout_s = min(TIMEOUT_S, limit_s)
        return self._timeout_s

    def take_account(self) -> Mapping[str, Any] | None:
        """Return the stages of the last inference and all failures, or None without a new one."""
        account, self._account = self._account, None
        return None if account is None else {**account, **{each.value: self._problems[each] for each in Problem}}

    def close(self) -> None:
        """Close the connection idempotently, at the end of an inference in another thread."""
        self._is_closed = True
        if not self._is_busy:
            self._disconnect()

    def _check(self, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the arrays of an answer, or raise Failure for others than expected or at first."""
        found = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        expected = self._expected
        if expected is None:  # any length of a chunk
            shapes = {
                name: (None, *array.shape[1:]) if array.ndim > 1 else array.shape for name, array in found.items()
            }
            expected = {name: ArraySpec(shape=shapes[name], dtype=array.dtype) for name, array in found.items()}
        for name, spec in expected.items():
            if (array := found.get(name)) is None:
                raise Failure(Problem.MALFORMED, f"no output {name!r} in the answer")
            is_number = array.dtype.kind in "iuf"
            if not (is_number and array.dtype == spec.dtype and spec.fits(array.shape) and array.size):
                shape = str(["any" if length is None else length for length in spec.shape]).replace("'", "")
                what, kind = f"{array.dtype} {list(array.shape)}", spec.dtype if is_number else "numbers"
                raise Failure(Problem.MALFORMED, f"output {name!r} is {what} (expected {kind} {shape})")
            if array.ndim > 1 and len(array) > _LONGEST_CHUNK:
                text = f"output {name!r} has {len(array)} rows (expected at most {_LONGEST_CHUNK})"
                raise Failure(Problem.MALFORMED, text)
            if not np.isfinite(array).all():
                raise Failure(Problem.MALFORMED, f"output {name!r} is not finite")
        if not expected:
            raise Failure(Problem.MALFORMED, "no array in the answer")
        self._expected = expected
        return {name: found[name].copy() for name in expected}

    def _pack(self, message: Mapping[str, Any]) -> bytes:
        """Return a request in the protocol's format, or raise UsageError for unsuitable inputs."""
        try:
            return pack(message, self.protocol)
        except WireError as error:
            raise UsageError(f"inputs of {self.address}: {error}") from error

    def _unpack(self, answer: bytes) -> Any:  # noqa: ANN401 - of a server
        try:
            return unpack(answer, self.protocol)
        except WireError as error:
            raise Failure(Problem.MALFORMED, str(error)) from None

    def _find_host(self) -> list[tuple[socket.AddressFamily, Any]]:
        """Resolve the server, without a time limit and so never in a step, or raise UsageError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            problem = f"cannot find the host of {self.address}: {error}"
            raise UsageError(f"{problem} (expected a name or an address)") from None
        return [(family, target) for family, _, _, _, target in found]

    def _check_metadata(self, message: bytes) -> None:
        """Keep the server's metadata, or raise Failure if they are invalid or have changed."""
        if len(message) > _MOST_BYTES:
            text = f"metadata of {len(message)} bytes (expected at most {_MOST_BYTES})"
            raise Failure(Problem.MALFORMED, text)
        if not isinstance(found := self._unpack(message), dict):
            raise Failure(Problem.MALFORMED, f"metadata is {type(found).__name__} (expected a map)")
        try:
            metadata = plain_copy(found, max_characters=_MOST_CHARACTERS)
        except ValueError as error:
            raise Failure(Problem.MALFORMED, f"invalid metadata: {error!s:.120} (expected JSON types)") from None
        if self._metadata not in (None, metadata):
            raise Failure(Problem.FOREIGN, "server restarted with other metadata, so perhaps with another model")
        self._metadata = metadata

    @abstractmethod
    def _greet(self, deadline_s: float) -> None:
        """Connect, and keep the metadata of the server, if it has any, or raise Failure."""

    @abstractmethod
    def _encode(self, inputs: Inputs) -> bytes:
        """Return the request, or raise UsageError for inputs that cannot be sent."""

    @abstractmethod
    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        """Connect if necessary, and return the answer, or raise Failure."""

    @abstractmethod
    def _decode(self, answer: bytes) -> tuple[Mapping[str, Any], float | None]:
        """Return the answer's values and the server's inference time, if known, or raise Failure."""

    def _may_continue(self, failure: Failure) -> bool:
        """Return whether no answer can arrive any more, so that the connection can be kept."""
        return failure.problem is Problem.REFUSED

    @abstractmethod
    def _disconnect(self) -> None:
        """Close what is open, without a message to the server in a forked process."""
