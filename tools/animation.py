"""Draw `docs/pictures/arm_reach.gif` with the arm, its target, and the requested and applied command of a joint.

    python tools/animation.py [OUTPUT]

A scripted policy with too much gain and with noise runs one episode on `mujoco`. The gate limits what it requests. The
picture is narrow and its text large, so that it can be read on a telephone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import embodied_env
from embodied_env.policies.policy_loader import load_policy

OUTPUT = Path(__file__).parents[1] / "docs" / "pictures" / "arm_reach.gif"
STEPS, JOINT, GAIN, NOISE, SEED = 90, 1, 1.6, 0.35, 11
SCENE, CHART = (480, 320), (480, 280)
CROP = (90, 70, 540, 370)  # of the rendered picture: the arm and its target
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 84, 44
GREY, BLUE, ORANGE, INK, PAPER = "#80868b", "#3f51b5", "#d84315", "#202124", "#ffffff"


def episode() -> tuple[list[Image.Image], NDArray[np.float64], NDArray[np.float64], float]:
    """Return a picture, the requested and the applied command of each step, and the control period in seconds."""
    env: Any = embodied_env.make("arm_reach", backend="mujoco", render_mode="rgb_array")
    random, policy = np.random.default_rng(4), load_policy("scripted", env.unwrapped.contract)
    observation, _ = env.reset(seed=SEED)
    target = find_target(env.render())
    scenes, requested, applied = [], [], []
    for _ in range(STEPS):
        wanted = np.asarray(policy(observation))
        action = np.clip(GAIN * wanted + NOISE * random.standard_normal(wanted.shape), -1.0, 1.0)
        observation, _, terminated, truncated, info = env.step(action)
        requested.append(info["action"]["requested"][JOINT])
        applied.append(info["action"]["applied"][JOINT])
        scenes.append(scene(env.render(), target))
        if terminated or truncated:
            break
    env.close()
    return scenes, np.array(requested), np.array(applied), env.unwrapped.contract.control_period_s


def find_target(pixels: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the centre of the orange pixels, which are the target."""
    red, green, blue = (pixels[..., channel].astype(int) for channel in range(3))
    rows, columns = np.nonzero((red > 120) & (red - green > 60) & (red - blue > 60))
    return float(columns.mean()), float(rows.mean())


def scene(pixels: NDArray[np.uint8], target: tuple[float, float]) -> Image.Image:
    """Return the part with the arm, with a ring around the target."""
    picture = Image.fromarray(pixels).crop(CROP).resize(SCENE, Image.Resampling.LANCZOS)
    scale = SCENE[0] / (CROP[2] - CROP[0])
    x, y = (scale * (value - edge) for value, edge in zip(target, CROP[:2], strict=True))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((x - 20, y - 20, x + 20, y + 20), outline=ORANGE, width=4)
    draw.text((x, y + 22), "target", ORANGE, ImageFont.load_default(26), anchor="ma", stroke_width=2, stroke_fill=PAPER)
    return picture


def chart(requested: NDArray[np.float64], applied: NDArray[np.float64], total: int, period_s: float) -> Image.Image:
    """Draw both commands up to this step."""
    picture = Image.new("RGB", CHART, PAPER)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(26)
    width, height = CHART[0] - LEFT - RIGHT, CHART[1] - TOP - BOTTOM

    def at(step: int, value: float) -> tuple[float, float]:
        return LEFT + width * step / (total - 1), TOP + height * (1.0 - value) / 2.0

    draw.text((12, 8), f"command of joint j{JOINT + 1}:", INK, font)
    draw.text((12, 42), "requested", GREY, font)
    draw.text((150, 42), "applied after the gate", BLUE, font)
    for value in (-1, 0, 1):
        draw.line([at(0, value), at(total - 1, value)], "#dadce0", 2)
        draw.text((LEFT - 8, at(0, value)[1]), f"{value:+d}" if value else "0", INK, font, anchor="rm")
    draw.text((CHART[0] - RIGHT, CHART[1] - 8), f"{len(requested) * period_s:.1f} s", INK, font, anchor="rd")
    for values, colour, line in ((requested, GREY, 3), (applied, BLUE, 6)):
        if len(values) > 1:
            draw.line([at(i, v) for i, v in enumerate(values)], colour, line, joint="curve")
    return picture


def main() -> None:
    """Write the animation."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    scenes, requested, applied, period_s = episode()
    frames = []
    for i, picture in enumerate(scenes):
        frame = Image.new("RGB", (SCENE[0], SCENE[1] + CHART[1]), PAPER)
        frame.paste(picture, (0, 0))
        frame.paste(chart(requested[: i + 1], applied[: i + 1], len(scenes), period_s), (0, SCENE[1]))
        frames.append(frame.quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
    durations = [round(1000 * period_s)] * (len(frames) - 1) + [1500]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(f"{output}: {len(frames)} frames, {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
