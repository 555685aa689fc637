"""Time of one remote inference of a null policy, against a bare `websockets` client and server with the same bytes.

    python benchmarks/policy_server.py [--requests N] [--rounds N] [--json FILE]

A request has two images of 224x224x3, 14 joint positions and an instruction; the answer is a chunk of 50 x 14. The
bare client and server send ready bytes, as openpi's do it; a third variant has the bare client and our server. Each
has a server in a process of its own; every round runs blocks of all variants in an order of its own. `ratio` is the
median of a round to that of the bare pair in the same round: the median over rounds, the least and the greatest.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from embodied_env.core.policy import PolicyIdentity
from embodied_env.policies.model import ArraySpec, Inputs, Model, Outputs
from embodied_env.policies.openpi_model import load_openpi
from embodied_env.policies.server import PolicyServer
from embodied_env.policies.wire import pack

BLOCK, WARM_UP = 20, 50
BARE = "bare client, bare server"
TARGET = 1.3
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
    """Run a server in a process of its own, which ends with its standard input; yield its port."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        yield int(process.stdout.readline())
        process.communicate()


@contextmanager
def our_client(port: int) -> Iterator[Call]:
    """Yield one inference of our client."""
    model: Model = load_openpi(f"//127.0.0.1:{port}")
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
    "our client, our server": ("ours", our_client),
    "bare client, our server": ("ours", bare_client),
}


def measure(requests: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round of each variant, us."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        calls: dict[str, Call] = {}
        for name, (kind, client) in VARIANTS.items():
            calls[name] = stack.enter_context(client(stack.enter_context(server(kind))))
            for _ in range(WARM_UP):
                calls[name]()
        gc.disable()
        for _ in range(rounds):
            took: dict[str, list[int]] = {name: [] for name in VARIANTS}
            for _ in range(-(-requests // BLOCK)):
                for name in random.sample(list(VARIANTS), len(VARIANTS)):
                    call = calls[name]
                    call()  # the first after another variant is slower
                    for _ in range(BLOCK):
                        begun = time.perf_counter_ns()
                        call()
                        took[name].append(time.perf_counter_ns() - begun)
            for name, each in took.items():
                values = np.array(each) / 1e3
                found[name].append({f"p{q}_us": float(np.percentile(values, q)) for q in (50, 95, 99)})
        gc.enable()
    return found


def rows(found: Mapping[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return a row for each variant."""
    table = []
    for name, each in found.items():
        ratios = [one["p50_us"] / bare["p50_us"] for one, bare in zip(each, found[BARE], strict=True)]
        row: dict[str, Any] = {"who": name} | {key: statistics.median(one[key] for one in each) for key in each[0]}
        table.append({**row, "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)})
    return table


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=400, help="of each variant in each round (default: 400)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: 7)")
    parser.add_argument("--json", type=Path, default=None, help="write the result to this file")
    parser.add_argument("--serve", choices=("bare", "ours"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve_ours() if args.serve == "ours" else serve_bare(request_and_answer()[1]))
        return 0
    table = rows(measure(args.requests, args.rounds))
    shown = Table(title="one inference of a null policy, us", title_justify="left")
    for name in table[0]:
        shown.add_column(name)
    for row in table:
        shown.add_row(*(value if isinstance(value, str) else f"{value:.2f}" for value in row.values()))
    console = Console(width=120)
    console.print(shown)
    reached = next(row["ratio"] for row in table if row["who"] == "our client, our server") <= TARGET
    console.print(f"our client and server: <= {TARGET} x the bare ones: {'reached' if reached else 'NOT reached'}")
    if args.json is not None:
        what = {"requests": args.requests, "rounds": args.rounds, "bytes": [len(each) for each in request_and_answer()]}
        args.json.write_text(json.dumps({**what, "rows": table, "reached": reached}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
