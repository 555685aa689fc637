"""CPU time of recording rows with two images of 640x480, and of the plain `Writer` of mcap for the same messages.

- ``embodied_env``: from a transition to the file, as at 100 Hz in real time: the row is encoded, each image compared
  with that of the environment itself, hashed, and stored with the row; a flush every ten rows.
- ``Writer``: the same messages, encoded from the same arrays, with the same compression, in chunks of its own size.

The images are of a camera: smooth, with noise, each different.
"""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import CompressionType, Writer
from numpy.typing import NDArray

import embodied_env
from embodied_env.core.types import Transition
from embodied_env.record.arrays import ARRAY, array_schema, encode_array
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.mcap_writer import COMPRESSIONS
from embodied_env.record.run_writer import LOG, RunWriter

from .harness import Samples, run_rounds

FLUSHED_ROWS = 10
CAMERAS = ("front_image", "wrist_image")

Image = NDArray[np.uint8]


def measure(*, smoke: bool) -> Samples:
    """Return the CPU time of a row, µs."""
    rounds, rows = (2, 20) if smoke else (7, 100)
    made, images = _transition(), camera_images(2 * rows)
    cases: dict[str, Any] = {}
    for compression in COMPRESSIONS:
        cases[f"embodied_env, {compression}"] = functools.partial(ours, made, images, compression)
        cases[f"Writer, {compression}"] = functools.partial(plain, made, images, compression)
    return run_rounds(cases, rounds)


def camera_images(count: int) -> list[Image]:
    """Return different images with gradients, a moving rectangle and noise."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:480, :640]
    found = []
    for number in range(count):
        image = np.stack([(x + 3 * number) % 640 / 3, y / 3, (x + y) / 8], axis=-1)
        image[100:200, 100 + number : 300 + number] = (200, 30, 40)
        noisy = image + generator.normal(0.0, 1.5, image.shape)
        found.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return found


def ours(made: Transition, images: list[Image], compression: str) -> float:
    """Record rows, and complete the run."""
    with tempfile.TemporaryDirectory() as folder:
        run = _open(Path(folder), compression)
        pairs = [dict(zip(CAMERAS, pair, strict=True)) for pair in zip(images[::2], images[1::2], strict=True)]
        outer = [{**_outer(made), "observation": {**made.observation, **_copied(pair)}} for pair in pairs]
        steps = [replace(made, observation={**made.observation, **pair}) for pair in pairs]
        start_s = time.process_time()
        for number, (step, values) in enumerate(zip(steps, outer, strict=True)):
            row = run.encode_step(step, values, number=number, now_ns=number)
            if row is None:
                raise AssertionError(run.losses.problem)
            run.write(row)
            if number % FLUSHED_ROWS == FLUSHED_ROWS - 1:
                run.settle()
        run.complete({}, "")
        return 1e6 * (time.process_time() - start_s) / len(steps)


def plain(made: Transition, images: list[Image], compression: str) -> float:
    """Write the same messages."""
    with tempfile.TemporaryDirectory() as folder:
        text = _row_text(made, images)
        start_s = time.process_time()
        with (Path(folder) / LOG).open("wb") as file:
            writer = Writer(file, compression=CompressionType[compression.upper()])
            writer.start()
            rows = writer.register_channel("transition", "json", writer.register_schema("row", "jsonschema", b"{}"))
            schema = writer.register_schema(ARRAY, "protobuf", array_schema())
            arrays = writer.register_channel("array", "protobuf", schema)
            for number in range(len(images) // 2):
                for image in images[2 * number : 2 * number + 2]:
                    writer.add_message(arrays, number, b"".join(encode_array(image)), number)
                writer.add_message(rows, number, text, number)
            writer.finish()
        return 1e6 * (time.process_time() - start_s) / (len(images) // 2)


def _transition() -> Transition:
    env: Any = embodied_env.make("arm_reach", backend="fake")
    env.reset(seed=1)
    env.step(np.zeros(6))
    made: Transition = env.unwrapped.last_transition
    env.close()
    return made


def _open(folder: Path, compression: str) -> RunWriter:
    return RunWriter(
        folder, evaluator=[], messages=False, encodes_at_once=False, start="0" * 64, compression=compression
    )


def _copied(pair: dict[str, Image]) -> dict[str, Image]:
    return {name: image.copy() for name, image in pair.items()}


def _outer(made: Transition) -> dict[str, Any]:
    observation, reward, terminated, truncated, info = made.result
    fields = {"observation": observation, "action": [0.0] * 6, "reward": reward}
    return {**fields, "terminated": terminated, "truncated": truncated, "info": info}


def _row_text(made: Transition, images: list[Image]) -> bytes:
    """Return a row as it is recorded."""
    with tempfile.TemporaryDirectory() as folder:
        ours_log = Path(folder)
        run = _open(ours_log, "none")
        pair = dict(zip(CAMERAS, images[:2], strict=True))
        step = replace(made, observation={**made.observation, **pair})
        row = run.encode_step(step, {**_outer(made), "observation": step.observation}, number=0, now_ns=0)
        if row is not None:
            run.write(row)
        run.complete({}, "")
        found = [each.record.data for each in McapRecords(ours_log / LOG).messages()]
    text: bytes = found[-1]
    return text
