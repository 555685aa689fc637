from types import SimpleNamespace

import pytest

import embodied_env
from embodied_env.envs.render_modes import RENDER_MODES, Rendering
from embodied_env.errors import BackendLostError


class Screen:
    """A world that counts its images, and is lost when it has none."""

    capabilities = SimpleNamespace(render_modes=RENDER_MODES)

    def __init__(self, images=9):
        self.images, self.shown = iter(range(images)), 0

    def render(self):
        for image in self.images:
            return image
        raise BackendLostError("closed", "no more images")

    def show(self):
        self.shown += 1


def rendering(mode, world):
    return Rendering("screen", world, embodied_env.load_contract("arm_reach"), mode), lambda: world


def test_a_list_has_the_images_of_the_episode_since_the_last_call_until_the_world_is_lost():
    rendered, renderer = rendering("rgb_array_list", Screen(images=4))
    rendered.begin(renderer)
    rendered.begin(renderer)  # another episode
    rendered.update(renderer)
    assert (rendered.render(renderer), rendered.render(renderer)) == ([1, 2], [])
    rendered.update(renderer)
    rendered.update(renderer)  # lost
    assert rendered.render(renderer) == [3]


def test_a_window_shows_every_reset_and_step(monkeypatch):
    monkeypatch.setenv("DISPLAY", ":99")
    world = Screen()
    rendered, renderer = rendering("human", world)
    rendered.begin(renderer)
    rendered.update(renderer)
    assert (world.shown, rendered.render(renderer)) == (2, None)


@pytest.mark.parametrize("mode", [None, "rgb_array"])
def test_other_modes_render_nothing_in_a_step(mode):
    world = Screen()
    rendered, renderer = rendering(mode, world)
    rendered.begin(renderer)
    rendered.update(renderer)
    assert (next(world.images), world.shown) == (0, 0)
