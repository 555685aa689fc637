"""Render a world in the render modes of Gymnasium, for one robot and for a team."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium

from embodied_env.backends.backend import Backend, Renderable
from embodied_env.contract import Contract
from embodied_env.errors import BackendLostError, UsageError
from embodied_env.sim.rendering import display_available

RENDER_MODES = ("rgb_array", "rgb_array_list", "human")


class Rendering:
    """The render mode of an environment, and what Gymnasium's `metadata` declares of it."""

    def __init__(self, name: str, backend: Backend, contract: Contract, mode: str | None) -> None:
        """Check `mode`, or raise UsageError unless the backend offers it and "human" has a display."""
        offered = backend.capabilities.render_modes
        if mode not in (None, *offered):
            expected = ", ".join(map(repr, (None, *offered)))
            raise UsageError(f"unsupported render_mode for {name}: {mode!r} (expected one of: {expected})")
        has_display = display_available()
        if mode == "human" and not has_display:
            expected = "expected DISPLAY or WAYLAND_DISPLAY to name one"
            raise UsageError(f"render_mode 'human' without a display ({expected}); use 'rgb_array', or view=\"web\"")
        modes = [each for each in offered if each != "human" or has_display]
        self.mode = mode
        self.metadata: dict[str, Any] = {
            "render_modes": modes,
            "render_fps": max(1, round(1 / contract.control_period_s)),
        }
        self._frames: list[Any] = []

    def begin(self, renderer: Callable[[], Renderable]) -> None:
        """Show or collect the world after a reset, without the images of the episode before."""
        self._frames = []
        self.update(renderer)

    def update(self, renderer: Callable[[], Renderable]) -> None:
        """Show the world in its window, or add an image to the list, by the mode."""
        if self.mode == "human":
            renderer().show()
        elif self.mode == "rgb_array_list":
            with suppress(BackendLostError):  # which the step reports
                self._frames.append(renderer().render())

    def render(self, renderer: Callable[[], Renderable]) -> Any:  # noqa: ANN401 - Gymnasium's: an array, a list or None
        """Return an image, the images since the last call or reset, or None."""
        if self.mode is None:
            gymnasium.logger.warn(f"render() without a render_mode (expected one of {self.metadata['render_modes']})")
            return None
        world = renderer()
        if self.mode == "human":
            return None
        if self.mode == "rgb_array":
            return world.render()
        frames, self._frames = self._frames, []
        return frames
