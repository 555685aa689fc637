"""Time of one remote inference of a null policy, and of a bare `websockets` client and server with the same bytes.

A request has two images of 224x224x3, 14 joint positions and an instruction; the answer is a chunk of 50 x 14. The
bare client and server send ready bytes, as openpi's do; a third case has the bare client and our server. Each has a
server in a process of its own.

    python -m benchmarks.policy_server bare|ours

is what those processes run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.core.policy import PolicyIdentity
from embodied_env.extensions.remote.openpi_model import load_openpi
from embodied_env.extensions.remote.policy_messages import pack
from embodied_env.extensions.remote.policy_server import PolicyServer
from embodied_env.policies.policy_model import ArraySpec, Inputs, Outputs, PolicyModel

from .harness import Samples, durations_us, run_rounds

REQUESTS, WARM_UP = 100, 20  # of a case in a round
BARE = "bare client, bare server"
IMAGE, JOINTS, CHUNK = (224, 224, 3), 14, (50, 14)

Call = Callable[[], Any]


class NullModel:
    """Returns the same chunk for every request."""

    identity = PolicyIdentity(name="null", format="python")
    inputs: Mapping[str, ArraySpec] | None = None
    outputs: Mapping[str, ArraySpec] | None = None

    def __init__(self) -> None:
        self._outputs = {"actions": np.random.default_rng(1).normal(size=CHUNK)}

    def reset(self, *, seed: int, episode_index: int) -> None:
        pass

    def infer(self, inputs: Inputs, /) -> Outputs:  # noqa: ARG002 - it is a null policy
        return self._outputs

    def close(self) -> None:
        pass


def make_inputs() -> dict[str, Any]:
    """Return the inputs of every request."""
    draws = np.random.default_rng(0)
    images = {f"image_{side}": draws.integers(0, 256, IMAGE, dtype=np.uint8) for side in ("left", "right")}
    return {**images, "state": draws.normal(size=JOINTS), "prompt": "fold the towel"}


def request_and_answer() -> tuple[bytes, bytes]:
    """Return the bytes that our client and server exchange."""
    about = {"request": {"epoch": 1, "step": 100}}
    request = pack({**make_inputs(), "embodied_env": about})
    outputs = NullModel().infer({})
    return request, pack({**outputs, "server_timing": {"infer_ms": 0.1}, "embodied_env": about})


async def serve_bare(answer: bytes) -> None:
    """Answer every message with the same bytes, with the settings of openpi's server."""
    from websockets.asyncio.server import ServerConnection, serve  # noqa: PLC0415

    async def answer_all(connection: ServerConnection) -> None:
        await connection.send(answer)  # in the place of the metadata
        async for _ in connection:
            await connection.send(answer)

    async with serve(answer_all, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def serve_ours() -> None:
    """Serve the null model."""
    stop = asyncio.Event()
    running = asyncio.create_task(
        PolicyServer(NullModel()).run("127.0.0.1", 0, stop=stop, on_ready=lambda port: print(port, flush=True))
    )
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stop.set()
    await running


@contextmanager
def server(kind: str) -> Iterator[int]:
    """Run a server in a separate process that ends with its standard input, and yield its port."""
    command, folder = [sys.executable, "-m", "benchmarks.policy_server", kind], Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        yield int(process.stdout.readline())
        process.communicate()


@contextmanager
def our_client(port: int) -> Iterator[Call]:
    """Yield one inference of our client."""
    model: PolicyModel = load_openpi(f"//127.0.0.1:{port}")
    model.reset(seed=0, episode_index=0)
    inputs, expected = make_inputs(), NullModel().infer({})["actions"]
    outputs = model.infer(inputs)
    if not isinstance(outputs, dict) or not np.array_equal(outputs["actions"], expected):
        raise SystemExit(f"the answer is not the one of the null policy: {outputs}")
    yield lambda: model.infer(inputs)
    model.close()


@contextmanager
def bare_client(port: int) -> Iterator[Call]:
    """Yield one exchange of ready bytes, with the settings of openpi's client."""
    from websockets.sync.client import connect  # noqa: PLC0415

    request, _ = request_and_answer()
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        connection.recv()

        def exchange() -> None:
            connection.send(request)
            connection.recv()

        yield exchange


VARIANTS: Mapping[str, tuple[str, Callable[[int], Any]]] = {
    BARE: ("bare", bare_client),
    "openpi:// client, serve": ("ours", our_client),
    "bare client, serve": ("ours", bare_client),
}


def measure(*, smoke: bool) -> Samples:
    """Return the median duration of a round's requests, µs.

    The first requests after another case are slower and do not count.
    """
    requests = 10 if smoke else REQUESTS

    def case(call: Call) -> float:
        return float(np.median(durations_us(lambda _: call(), range(WARM_UP + requests))[WARM_UP:]))

    with ExitStack() as stack:
        cases = {
            name: partial(case, stack.enter_context(client(stack.enter_context(server(kind)))))
            for name, (kind, client) in VARIANTS.items()
        }
        return run_rounds(cases, 2 if smoke else 25)


if __name__ == "__main__":
    asyncio.run(serve_ours() if sys.argv[1] == "ours" else serve_bare(request_and_answer()[1]))
