"""Draw `docs/pictures/arm_reach.gif` with the arm and the requested and applied command of one joint.

    python tools/animation.py [OUTPUT]

A scripted policy with too much gain and with noise runs one episode on `mujoco`; the gate limits what it requests.
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
STEPS, JOINT, GAIN, NOISE = 90, 1, 1.6, 0.35
SCENE, CHART = (384, 288), (400, 288)
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 62, 34
GREY, BLUE, INK, PAPER = "#9aa0a6", "#3f51b5", "#202124", "#ffffff"


def episode() -> tuple[list[Image.Image], NDArray[np.float64], NDArray[np.float64], float]:
    """Return a picture, the requested and the applied command of each step, and the control period in seconds."""
    env: Any = embodied_env.make("arm_reach", backend="mujoco", render_mode="rgb_array")
    random, policy = np.random.default_rng(4), load_policy("scripted", env.unwrapped.contract)
    observation, _ = env.reset(seed=5)
    scenes, requested, applied = [], [], []
    for _ in range(STEPS):
        wanted = np.asarray(policy(observation))
        action = np.clip(GAIN * wanted + NOISE * random.standard_normal(wanted.shape), -1.0, 1.0)
        observation, _, terminated, truncated, info = env.step(action)
        requested.append(info["action"]["requested"][JOINT])
        applied.append(info["action"]["applied"][JOINT])
        scenes.append(Image.fromarray(env.render()).resize(SCENE, Image.Resampling.LANCZOS))
        if terminated or truncated:
            break
    env.close()
    return scenes, np.array(requested), np.array(applied), env.unwrapped.contract.control_period_s


def chart(requested: NDArray[np.float64], applied: NDArray[np.float64], total: int, period_s: float) -> Image.Image:
    """Draw both commands up to this step."""
    picture = Image.new("RGB", CHART, PAPER)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    width, height = CHART[0] - LEFT - RIGHT, CHART[1] - TOP - BOTTOM

    def at(step: int, value: float) -> tuple[float, float]:
        return LEFT + width * step / (total - 1), TOP + height * (1.0 - value) / 2.0

    draw.text((LEFT, 8), f"Command of joint j{JOINT + 1}, normalised", INK, font)
    draw.text((LEFT, 28), "requested", GREY, font)
    draw.text((LEFT + 80, 28), "applied after the gate", BLUE, font)
    for value in (-1, 0, 1):
        draw.line([at(0, value), at(total - 1, value)], "#e0e0e0")
        draw.text((LEFT - 24, at(0, value)[1] - 8), f"{value:+d}" if value else " 0", INK, font)
    draw.text((LEFT, CHART[1] - 24), f"{len(requested) * period_s:4.1f} s", INK, font)
    for values, colour, line in ((requested, GREY, 1), (applied, BLUE, 3)):
        if len(values) > 1:
            draw.line([at(i, v) for i, v in enumerate(values)], colour, line)
    return picture


def main() -> None:
    """Write the animation."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    scenes, requested, applied, period_s = episode()
    frames = []
    for i, scene in enumerate(scenes):
        frame = Image.new("RGB", (SCENE[0] + CHART[0], SCENE[1]), PAPER)
        frame.paste(scene, (0, 0))
        frame.paste(chart(requested[: i + 1], applied[: i + 1], len(scenes), period_s), (SCENE[0], 0))
        frames.append(frame.quantize(96, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
    durations = [round(1000 * period_s)] * (len(frames) - 1) + [1500]
    frames[0].save(output, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(f"{output}: {len(frames)} frames, {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
