"""Each cell of the table in docs/reference/vector.md is tested with Gymnasium's vector wrappers by autoreset mode.

Where a wrapper works, it gives the same results as over a SyncVectorEnv of the same environments.
"""

import contextlib
import importlib.util
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformAction, TransformObservation, TransformReward
from gymnasium.wrappers import vector as wrappers
from shipped_contracts import rescaled

import embodied_env

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "vector.md"

WORKS, NEVER = "works", "does not apply"
AS_IT_IS, FLAT, RENDERED = "as it is", "after FlattenObservation", "with a renderer"
NOT_SAME_STEP = "Expected autoreset_mode"
NEXT_STEP_ALONE = "to be AutoresetMode.NEXT_STEP"
NO_TEXT = "DLPack only supports"
BOX = "requires a Box observation space"

OF_OBSERVATIONS = (WORKS, NOT_SAME_STEP, WORKS)
EVERYWHERE = (WORKS, WORKS, WORKS)
NOWHERE = (NO_TEXT, NO_TEXT, NO_TEXT)


def flat(env):
    return wrappers.FlattenObservation(env)


@dataclass(frozen=True)
class Row:
    """A wrapper, the environment it wraps, and its result in each mode (in the order of `AutoresetMode`)."""

    name: str
    base: str
    cells: tuple[str, str, str]
    arguments: tuple = ()
    wrap: Callable[[gymnasium.vector.VectorEnv], gymnasium.vector.VectorEnv] | None = None  # by default the wrapper
    bare: str = ""  # its error if it does not support the environment
    needs: tuple[str, ...] = ()
    warns: str = ""
    warns_in: tuple[AutoresetMode, ...] = tuple(AutoresetMode)

    def __call__(self, env):
        return self.wrap(env) if self.wrap else getattr(wrappers, self.name)(env, *self.arguments)


TABLE = [
    Row("ArrayConversion", NEVER, NOWHERE, (np, np), needs=("array_api_compat",)),
    Row("ClipAction", AS_IT_IS, EVERYWHERE),
    Row("ClipReward", AS_IT_IS, EVERYWHERE, (-0.1, 0.1)),
    Row("DictInfoToList", AS_IT_IS, EVERYWHERE),
    Row(
        "DtypeObservation",
        FLAT,
        OF_OBSERVATIONS,
        (np.float32,),
        bare="requires a Box, Discrete, MultiDiscrete, or MultiBinary space",
        warns="precision lowered by casting to float32",
    ),
    Row("FilterObservation", AS_IT_IS, OF_OBSERVATIONS, (["joints_position"],)),
    Row("FlattenObservation", AS_IT_IS, OF_OBSERVATIONS),
    Row("GrayscaleObservation", NEVER, (BOX, NOT_SAME_STEP, BOX)),
    Row("HumanRendering", RENDERED, EVERYWHERE, bare="Expected env.render_mode", needs=("pygame", "cv2")),
    Row("JaxToNumpy", NEVER, NOWHERE, needs=("array_api_compat", "jax")),
    Row("JaxToTorch", NEVER, NOWHERE, needs=("array_api_compat", "jax", "torch")),
    Row("NormalizeObservation", FLAT, (WORKS, NOT_SAME_STEP, NEXT_STEP_ALONE), bare="axis 0 is out of bounds"),
    Row("NormalizeReward", AS_IT_IS, EVERYWHERE),
    Row("NumpyToTorch", NEVER, NOWHERE, needs=("array_api_compat", "torch")),
    Row("RecordEpisodeStatistics", AS_IT_IS, EVERYWHERE),
    Row(
        "RecordVideo",
        RENDERED,
        EVERYWHERE,
        wrap=lambda env: wrappers.RecordVideo(env, secrets.token_hex(4)),
        bare="Render mode is None",
        needs=("moviepy",),
        warns="Recorded episodes will not contain the last frame",
        warns_in=(AutoresetMode.SAME_STEP,),
    ),
    Row("RescaleAction", AS_IT_IS, EVERYWHERE, (-2, 2)),
    Row("RescaleObservation", FLAT, OF_OBSERVATIONS, wrap=rescaled, bare=BOX),
    Row("ReshapeObservation", FLAT, OF_OBSERVATIONS, ((19, 1),), bare=BOX),
    Row("ResizeObservation", NEVER, (BOX, NOT_SAME_STEP, BOX), ((8, 8),)),
    Row("TransformAction", AS_IT_IS, EVERYWHERE, (np.negative,)),
    Row("TransformObservation", AS_IT_IS, OF_OBSERVATIONS, (dict,)),
    Row("TransformReward", AS_IT_IS, EVERYWHERE, (np.negative,)),
    Row(
        "VectorizeTransformAction",
        AS_IT_IS,
        EVERYWHERE,
        wrap=lambda env: wrappers.VectorizeTransformAction(env, TransformAction, func=np.negative, action_space=None),
    ),
    Row(
        "VectorizeTransformObservation",
        AS_IT_IS,
        OF_OBSERVATIONS,
        wrap=lambda env: wrappers.VectorizeTransformObservation(
            env, TransformObservation, func=dict, observation_space=None
        ),
    ),
    Row(
        "VectorizeTransformReward",
        AS_IT_IS,
        EVERYWHERE,
        wrap=lambda env: wrappers.VectorizeTransformReward(env, TransformReward, func=np.negative),
    ),
]
CELLS = [
    pytest.param(row, mode, cell, id=f"{row.name}-{mode.name}")
    for row in TABLE
    for mode, cell in zip(AutoresetMode, row.cells, strict=True)
]
BETTER = {("RecordEpisodeStatistics", AutoresetMode.DISABLED)}
"""SyncVectorEnv takes the mask away before the wrapper sees it, which then forgets the episodes that go on."""


def documented():
    """Return the cells of each wrapper in the order of names, where a row of the page has several."""
    section = DOCS.read_text().split("## Wrappers by mode\n")[1].split("\n## ")[0]
    rows = [line.replace("`", "").split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return sorted([name, *map(str.strip, row[1:])] for row in rows for name in row[0].strip().split(", "))


def test_every_vector_wrapper_of_gymnasium_has_a_row():
    assert [row.name for row in TABLE] == sorted(wrappers.__all__)


def test_the_docs_have_the_same_cells():
    assert [row[:5] for row in documented()] == [[row.name, row.base, *row.cells] for row in TABLE]


def limits(slot):
    return {"max_episode_steps": 3 + 2 * slot}


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make our vector environment, or Gymnasium's over the same environments, and write videos to the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with contextlib.ExitStack() as stack:

        def made(mode, *, ours=True, backend="fake", **options):
            options |= {"backend": backend, "clock": "virtual"}
            if ours:
                env = embodied_env.make_vec("arm_reach", num_envs=2, autoreset_mode=mode, per_slot=limits, **options)
            else:
                makers = [
                    lambda slot=slot: embodied_env.make("arm_reach", **options, **limits(slot)) for slot in range(2)
                ]
                env = SyncVectorEnv(makers, autoreset_mode=mode)
            stack.callback(env.close)
            return env

        yield made


def wrap(env, row, *, warns=True):
    warns = warns and row.warns and env.metadata["autoreset_mode"] in row.warns_in
    with pytest.warns(UserWarning, match=row.warns) if warns else contextlib.nullcontext():
        return row(flat(env) if row.base == FLAT else env)


def results_of(env, mode):
    """Step through several ends of episodes, and return all results but infos as text."""
    observations, infos = env.reset(seed=3)
    space = env.unwrapped.action_space
    space.seed(3)
    seen = [repr(observations)]
    finals = []
    for _ in range(8):
        observations, rewards, terminations, truncations, infos = env.step(space.sample() * 1.5)
        seen.append(repr((observations, rewards, terminations, truncations)))
        if isinstance(infos, dict):
            finals.append(repr((infos.get("final_obs"), without_wall_time(infos.get("episode")))))
        ended = np.asarray(terminations) | np.asarray(truncations)
        if mode is AutoresetMode.DISABLED and ended.any():
            observations, _ = env.reset(options={"reset_mask": ended})
            seen.append(repr(observations))
    return seen, finals


def without_wall_time(episode):
    return None if episode is None else {key: value for key, value in episode.items() if key not in ("t", "_t")}


@pytest.mark.parametrize(("row", "mode", "cell"), CELLS)
def test_a_cell_of_the_table_is_correct(make, row, mode, cell):
    if missing := [module for module in row.needs if importlib.util.find_spec(module) is None]:
        pytest.skip(f"{row.name} needs {', '.join(missing)}, which is not installed")
    if cell != WORKS:
        with pytest.raises((TypeError, ValueError, BufferError), match=re.escape(cell)):
            wrap(make(mode), row, warns=False).reset(seed=0)
        return
    rendered = {"backend": "mujoco", "render_mode": "rgb_array"} if row.base == RENDERED else {}
    both = (wrap(make(mode, ours=ours, **rendered), row) for ours in (True, False))
    (ours, our_finals), (theirs, their_finals) = (results_of(env, mode) for env in both)
    assert ours == theirs
    if (row.name, mode) not in BETTER:
        assert our_finals == their_finals


@pytest.mark.parametrize("row", [row for row in TABLE if row.bare], ids=lambda row: row.name)
def test_wrapping_the_bare_vector_raises_the_documented_error(make, row):
    with pytest.raises((TypeError, ValueError), match=re.escape(row.bare)):
        row(make(AutoresetMode.NEXT_STEP)).reset(seed=0)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_episode_statistics_are_counted_in_every_mode(make, mode):
    env = wrappers.RecordEpisodeStatistics(make(mode))
    env.reset(seed=0)
    lengths = []
    for _ in range(6):
        *_, terminations, truncations, infos = env.step(env.action_space.sample())
        if "episode" in infos:
            lengths.append(infos["episode"]["l"].tolist())
        if mode is AutoresetMode.DISABLED and (terminations | truncations).any():
            env.reset(options={"reset_mask": terminations | truncations})
    assert lengths == ([[3, 0], [0, 5]] if mode is AutoresetMode.NEXT_STEP else [[3, 0], [0, 5], [3, 0]])
