"""Serve a model over openpi's WebSocket protocol.

It sends metadata on connecting, then one answer for each request. An error is a text frame. `policy_messages` describes
what this package adds to openpi's messages.
"""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import NoAction, Policy, find_continuing, find_n_action_steps, find_required_sensors
from embodied_env.errors import EmbodiedEnvError, UsageError, described
from embodied_env.extensions.remote.policy_messages import (
    EXTENSION,
    MOST_BYTES,
    import_library,
    keep_freed_memory,
    pack,
    specs_to_message,
    unpack,
)
from embodied_env.policies.policy_model import ArraySpec, Inputs, ModelPolicy, Outputs, PolicyModel

_BUSY = "another client is connected (expected one); close it, or start another server"
_BUSY_GRACE_S = 1.0  # in which a client that has just left is removed
_CLOSE_TIMEOUT_S = 1.0
_MOST_LOGGED = 20  # different errors one after another
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}  # s, s, -, ms

_log = logging.getLogger(__name__)
_library_log = logging.getLogger(f"{__name__}.websockets")
_library_log.setLevel(logging.CRITICAL)  # it logs a traceback for each connection that is no WebSocket


class PolicyServer:
    """Serves one model to one client at a time."""

    def __init__(self, model: PolicyModel, *, contract: Contract | None = None, policy_file: str | None = None) -> None:
        """Serve `model` of `contract`, for which clients need the `policy_file` of this name."""
        self._model, self._last_error, self._n_errors = model, "", 0
        about: dict[str, Any] = {"inputs": specs_to_message(model.inputs), "outputs": specs_to_message(model.outputs)}
        about["identity"] = model.identity.as_mapping()
        about |= {} if find_continuing(model) is None else {"continues_chunks": True}
        about |= {} if (count := find_n_action_steps(model)) is None else {"n_action_steps": count}
        self._last_request: object = None
        if sensors := find_required_sensors(model):
            about["required_sensors"] = list(sensors)
        if contract is not None:
            about |= {"contract": contract.name, "fingerprint": contract.fingerprint}
            about |= {} if (instruction := contract.task.instruction) is None else {"instruction": instruction}
        if policy_file is not None:
            about["policy_file"] = policy_file
        self._metadata = pack({EXTENSION: about})
        keep_freed_memory()

    async def run(self, host: str, port: int, *, stop: asyncio.Event, on_ready: Callable[[int], None]) -> None:
        """Serve until `stop` is set.

        `on_ready` receives the port, which is a free one if `port` is 0.

        Raises:
            UsageError: if it cannot listen on this address.
            MissingDependencyError: if websockets is not installed.
        """
        websockets = import_library("websockets.asyncio.server")
        self._is_free = asyncio.Event()
        self._is_free.set()
        try:
            server = await websockets.serve(
                self._serve_client,
                host,
                port,
                process_request=self._admit,
                origins=[None],  # no page in a browser
                compression=None,
                max_size=MOST_BYTES,
                max_queue=2,
                ping_interval=None,  # an inference may take minutes, and TCP detects a client that has gone
                close_timeout=_CLOSE_TIMEOUT_S,
                logger=_library_log,
            )
        except (OSError, OverflowError) as error:
            problem = f"cannot listen on {host}:{port}: {described(error)}"
            raise UsageError(f"{problem} (expected a free port of this machine)") from None
        async with server:
            on_ready(next(iter(server.sockets)).getsockname()[1])
            await stop.wait()

    async def _admit(self, connection: Any, request: Any) -> Any:  # noqa: ANN401 - of websockets
        """Return None for a client that may connect, or an HTTP response."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        try:
            async with asyncio.timeout(_BUSY_GRACE_S):
                await self._is_free.wait()
        except TimeoutError:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{_BUSY}\n")
        return None

    async def _serve_client(self, connection: Any) -> None:  # noqa: ANN401 - of websockets
        from websockets.exceptions import ConnectionClosed

        if not self._is_free.is_set():  # two were admitted at once
            await connection.close(1013, _BUSY)
            return
        self._is_free.clear()
        try:
            connected: socket.socket = connection.transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # closed when the client vanishes
            for name, value in _KEEPALIVE.items():
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._model.reset(seed=0, episode_index=0)
            await connection.send(self._metadata)
            async for message in connection:
                await connection.send(self._answer(message))
        except ConnectionClosed:
            pass
        finally:
            self._is_free.set()

    def _answer(self, message: bytes | str) -> bytes | str:
        try:
            return self._infer(message if isinstance(message, str) else unpack(message))
        except Exception as error:  # noqa: BLE001 - of a model, or of any request
            is_ours = isinstance(error, EmbodiedEnvError)
            text = NoAction(str(error) if is_ours else described(error)).reason
            if text != self._last_error:
                self._n_errors += 1
                if self._n_errors <= _MOST_LOGGED or self._n_errors.bit_count() == 1:  # then at powers of two
                    _log.warning("error %d: %s", self._n_errors, text, exc_info=None if is_ours else error)
            self._last_error = text
            return text

    def _infer(self, request: Any) -> bytes | str:  # noqa: ANN401 - of a client
        extension = request.pop(EXTENSION, {}) if isinstance(request, dict) else None
        if not isinstance(extension, dict):
            raise UsageError(f"invalid request: {request!r:.80} (expected a map of inputs in MessagePack)")
        if (reset := extension.get("reset")) is not None:
            match reset:
                case {"seed": int(seed), "episode_index": int(index)} if seed >= 0 and index >= 0:
                    self._model.reset(seed=seed, episode_index=index)
                case _:
                    problem = f"invalid reset: {reset!r:.80}"
                    raise UsageError(f"{problem} (expected seed and episode_index, whole numbers >= 0)")
        _check(request, self._model.inputs or {})
        prefix, continuing = extension.get("prefix"), find_continuing(self._model)
        if prefix and continuing is not None and prefix["request"] == self._last_request:
            continuing.continue_chunk(executed=int(prefix["executed"]), delay=int(prefix["delay"]))
        begun = time.monotonic()
        outputs = self._model.infer(request)
        if isinstance(outputs, NoAction):
            return outputs.reason
        self._last_request = extension.get("request")
        answer = {**outputs, "server_timing": {"infer_ms": (time.monotonic() - begun) * 1e3}}
        if extension:
            answer[EXTENSION] = {"request": extension.get("request")}
        return pack(answer)


class ServedPolicy(PolicyModel):
    """A policy as a model from the observation to ``actions`` (n, n_joints) in action units."""

    def __init__(self, policy: Policy, contract: Contract) -> None:
        """Wrap `policy`, or raise UsageError if it must observe the steps between two requests."""
        if isinstance(policy, ModelPolicy) and policy.observes_steps:
            problem = f"policy {policy.identity.name!r} cannot be served: a client sends no observation within a chunk"
            remedy = "serve it without --contract, and give the client its policy file"
            raise UsageError(f"{problem} (expected a policy without history, or execute: 1); {remedy}")
        self._policy, self._layout, self.identity = policy, ActionLayout(contract), policy.identity
        self._keys = contract.observation_space.spaces
        self._continuing = find_continuing(policy)
        self.continues_chunks = self._continuing is not None
        self.n_action_steps = find_n_action_steps(policy)
        self.required_sensors = find_required_sensors(policy)
        inputs = {key: ArraySpec(shape=box.shape or (), dtype=np.dtype(box.dtype)) for key, box in self._keys.items()}
        self.inputs: Mapping[str, ArraySpec] | None = inputs
        action = ArraySpec(shape=(None, self._layout.size), dtype=np.dtype(np.float64))
        self.outputs: Mapping[str, ArraySpec] | None = {"actions": action}

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Reset the policy."""
        self._policy.reset(seed=seed, episode_index=episode_index)

    def infer(self, inputs: Inputs, /) -> Outputs | NoAction:
        """Return the actions of the policy for an observation."""
        answer = self._policy({key: np.array(inputs[key], dtype=box.dtype) for key, box in self._keys.items()})
        if isinstance(answer, NoAction):
            return answer
        parts = [answer[name] for name in self._layout.slices] if isinstance(answer, Mapping) else [answer]
        return {"actions": np.concatenate([np.atleast_2d(np.asarray(part, np.float64)) for part in parts], axis=1)}

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        """Make the next inference of the policy continue its last chunk."""
        if self._continuing is not None:
            self._continuing.continue_chunk(executed=executed, delay=delay)

    def close(self) -> None:
        """Close the policy."""
        self._policy.close()


def _check(inputs: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> None:
    """Raise UsageError unless `inputs` contain those of `specs`, which may be a part of them."""
    for name, spec in specs.items():
        if name not in inputs:
            raise UsageError(f"no input {name!r} in the request (expected: {', '.join(specs)})")
        try:
            value = np.asarray(inputs[name])
        except ValueError:  # a ragged list
            raise UsageError(f"input {name!r} is no array: {inputs[name]!r:.80} (expected {spec.dtype})") from None
        if (value.dtype.kind == "U") != (spec.dtype.kind == "U") or value.dtype.kind not in "biufU":
            found, expected = ("str" if dtype.kind == "U" else dtype.name for dtype in (value.dtype, spec.dtype))
            raise UsageError(f"input {name!r} has the dtype {found} (expected {expected})")
        if not spec.fits(value.shape):
            raise UsageError(f"input {name!r} has the shape {value.shape} (expected {spec.shape})")
