"""Each row of the two tables in docs/reference/wrappers.md is tested, and over every contract in the long edition."""

import contextlib
import importlib.util
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils.env_checker import data_equivalence
from shipped_contracts import changed_contract, rescaled

import embodied_env
from embodied_env.envs.action_chunks import ActionChunks
from embodied_env.errors import MissingDependencyError
from embodied_env.record import RecordTransitions, read_run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference" / "wrappers.md"
CONTRACTS = ("arm_reach", "cart_goal", "door_open")
STEPS = 5


AS_IT_IS = "as it is"
FLAT = "after FlattenObservation"
RENDERED = "with a renderer"
PIXELS = "after AddRenderObservation"
NEVER = "does not apply"
INSIDE = {FLAT: ("FlattenObservation",), PIXELS: ("AddRenderObservation",)}
"""Verdict -> what has to be between the environment and the wrapper."""


@dataclass(frozen=True)
class Row:
    """A wrapper, and how it is applied."""

    name: str
    verdict: str
    wrap: Callable[[gymnasium.Env], gymnasium.Env]
    needs: tuple[str, ...] = ()
    warns: str = ""
    first: tuple[str, ...] = ()

    @property
    def stack(self) -> tuple[str, ...]:
        """Return a stack of wrappers, from the environment outwards."""
        return (*self.first, *INSIDE.get(self.verdict, ()), self.name)


def vectors_of(env):
    """Return the keys of an observation that are bounded, and not images."""
    return [key for key, box in env.observation_space.items() if len(box.shape) == 1 and box.is_bounded()]


def imported(name):
    """Return a wrapper that imports another package when it is applied."""

    def wrap(env):
        return getattr(wrappers, name)(env)

    return wrap


TABLE = [
    Row("AddRenderObservation", RENDERED, wrappers.AddRenderObservation),
    Row("AddWhiteNoise", RENDERED, lambda env: wrappers.AddWhiteNoise(env, 0.5)),
    Row("ArrayConversion", AS_IT_IS, lambda env: wrappers.ArrayConversion(env, np, np), needs=("array_api_compat",)),
    Row("AtariPreprocessing", NEVER, wrappers.AtariPreprocessing, needs=("cv2",)),
    Row("Autoreset", AS_IT_IS, wrappers.Autoreset),
    Row("ClipAction", AS_IT_IS, wrappers.ClipAction),
    Row("ClipReward", AS_IT_IS, lambda env: wrappers.ClipReward(env, -1.0, 1.0)),
    Row("DelayObservation", AS_IT_IS, lambda env: wrappers.DelayObservation(env, 2)),
    Row("DiscretizeAction", AS_IT_IS, lambda env: wrappers.DiscretizeAction(env, 3, multidiscrete=True)),
    Row(
        "DiscretizeObservation",
        FLAT,
        lambda env: wrappers.DiscretizeObservation(env, 3, multidiscrete=True),
        first=("FilterObservation",),  # each pixel takes as long as a joint
    ),
    Row(
        "DtypeObservation",
        FLAT,
        lambda env: wrappers.DtypeObservation(env, np.float32),
        warns="precision lowered by casting to float32",
    ),
    Row("FilterObservation", AS_IT_IS, lambda env: wrappers.FilterObservation(env, vectors_of(env)[:2])),
    Row("FlattenObservation", AS_IT_IS, wrappers.FlattenObservation),
    Row("FrameStackObservation", AS_IT_IS, lambda env: wrappers.FrameStackObservation(env, 3)),
    Row("GrayscaleObservation", PIXELS, wrappers.GrayscaleObservation),
    Row("HumanRendering", RENDERED, wrappers.HumanRendering, needs=("pygame",)),
    Row("JaxToNumpy", AS_IT_IS, imported("JaxToNumpy"), needs=("array_api_compat", "jax")),
    Row("JaxToTorch", AS_IT_IS, imported("JaxToTorch"), needs=("array_api_compat", "jax", "torch")),
    Row("MaxAndSkipObservation", FLAT, lambda env: wrappers.MaxAndSkipObservation(env, 2)),
    Row("NormalizeObservation", FLAT, wrappers.NormalizeObservation),
    Row("NormalizeReward", AS_IT_IS, wrappers.NormalizeReward),
    Row("NumpyToTorch", AS_IT_IS, imported("NumpyToTorch"), needs=("array_api_compat", "torch")),
    Row("ObstructView", RENDERED, lambda env: wrappers.ObstructView(env, 0.1, 8)),
    Row("OrderEnforcing", AS_IT_IS, wrappers.OrderEnforcing),
    Row("PassiveEnvChecker", AS_IT_IS, wrappers.PassiveEnvChecker),
    Row("RecordEpisodeStatistics", AS_IT_IS, wrappers.RecordEpisodeStatistics),
    Row("RecordVideo", RENDERED, lambda env: wrappers.RecordVideo(env, "videos"), needs=("moviepy",)),
    Row("RenderCollection", RENDERED, wrappers.RenderCollection),
    Row("RepeatAction", AS_IT_IS, lambda env: wrappers.RepeatAction(env, 2)),
    Row("RescaleAction", AS_IT_IS, lambda env: wrappers.RescaleAction(env, np.float32(-2), np.float32(2))),
    Row("RescaleObservation", FLAT, rescaled),
    Row(
        "ReshapeObservation",
        FLAT,
        lambda env: wrappers.ReshapeObservation(env, (1, *(env.observation_space.shape or ()))),
    ),
    Row("ResizeObservation", PIXELS, lambda env: wrappers.ResizeObservation(env, (24, 32)), needs=("cv2",)),
    Row("StickyAction", AS_IT_IS, lambda env: wrappers.StickyAction(env, 0.5)),
    Row("TimeAwareObservation", AS_IT_IS, wrappers.TimeAwareObservation),
    Row("TimeLimit", AS_IT_IS, lambda env: wrappers.TimeLimit(env, STEPS - 1)),
    Row("TransformAction", AS_IT_IS, lambda env: wrappers.TransformAction(env, lambda action: -action, None)),
    Row("TransformObservation", AS_IT_IS, lambda env: wrappers.TransformObservation(env, copy, None)),
    Row("TransformReward", AS_IT_IS, lambda env: wrappers.TransformReward(env, lambda reward: 2.0 * reward)),
]
ROWS = {row.name: row for row in TABLE}

STACKS = [
    ("TimeLimit", "TimeAwareObservation", "NormalizeObservation", "RecordEpisodeStatistics"),
    ("PassiveEnvChecker", "OrderEnforcing", "TimeLimit", "RecordEpisodeStatistics"),
    ("FilterObservation", "FlattenObservation", "FrameStackObservation"),
    ("FrameStackObservation", "FlattenObservation", "NormalizeObservation"),
    ("RescaleAction", "FlattenObservation", "RescaleObservation", "DelayObservation"),
    ("ClipAction", "StickyAction", "RecordEpisodeStatistics", "NormalizeReward", "ClipReward"),
]
"""From the environment outwards. `RecordTransitions` is put outside of each."""


def cells(heading):
    """Return the cells of each name in the table under `heading`, without backticks, where a row may have several."""
    section = DOCS.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.replace("`", "").split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [[name, *map(str.strip, row[1:])] for row in rows for name in row[0].strip().split(", ")]


def test_every_wrapper_of_gymnasium_has_a_row():
    assert sorted(ROWS) == sorted(set(wrappers.__all__) - {"vector"})  # a module: wrappers of vector environments


def test_the_docs_have_the_same_rows_and_verdicts():
    assert sorted(row[:2] for row in cells("Gymnasium's wrappers")) == sorted([row.name, row.verdict] for row in TABLE)


def test_the_docs_have_the_same_stacks():
    assert [row[0] for row in cells("Tested stacks")] == [" → ".join(stack) for stack in STACKS]


@pytest.fixture(params=[CONTRACTS[0], *(pytest.param(name, marks=pytest.mark.long) for name in CONTRACTS[1:])])
def contract(request):
    return request.param


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make environments that are closed after the test and write videos to the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with contextlib.ExitStack() as stack:

        def made(contract, backend="fake", **options):
            env = embodied_env.make(contract, backend=backend, clock="virtual", **options)
            stack.callback(env.close)
            return env

        yield made


def missing(row):
    return [module for module in row.needs if importlib.util.find_spec(module) is None]


def skip_without_packages(row):
    if missing(row):
        pytest.skip(f"{row.name} needs {', '.join(missing(row))}, which is not installed")


def wrap_all(env, *names):
    for row in (ROWS[name] for name in names):
        with pytest.warns(UserWarning, match=row.warns) if row.warns else contextlib.nullcontext():
            env = row.wrap(env)
    return env


def episode(env, steps=STEPS):
    """Reset and take a few steps, with another reset where an episode ends, and return all that an agent observes."""
    observation, info = env.reset(seed=3)
    env.action_space.seed(3)
    seen = [as_arrays(observation)]
    for _ in range(steps):
        assert as_arrays(observation) in env.observation_space
        assert isinstance(info, dict)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert np.isfinite(reward)
        assert not (terminated and truncated)
        seen.append((as_arrays(observation), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            assert as_arrays(observation) in env.observation_space
            observation, info = env.reset()
    assert as_arrays(observation) in env.observation_space
    return seen


def as_arrays(observation):
    """Convert arrays of other packages to NumPy's, since the environment's space does not contain them."""
    if isinstance(observation, dict):
        return {key: as_arrays(value) for key, value in observation.items()}
    return np.asarray(observation) if hasattr(observation, "__dlpack__") else observation


IN_PROCESS = [row.name for row in TABLE if row.verdict in (AS_IT_IS, FLAT)]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_the_wrapper_works_and_is_reproducible(contract, make, name):
    row = ROWS[name]
    skip_without_packages(row)
    first, second = (episode(wrap_all(make(contract), *row.stack)) for _ in range(2))
    assert data_equivalence(first, second)


def test_a_camera_image_works_with_image_wrappers(make):
    env, key = next(
        (env, key)
        for env in map(make, CONTRACTS)
        for key, box in env.observation_space.items()
        if box.shape[2:] == (3,) and box.dtype == np.uint8
    )
    box = env.observation_space[key]
    image = wrappers.TransformObservation(env, lambda observation: observation[key], box)
    grey = wrap_all(image, "GrayscaleObservation", "FrameStackObservation")
    episode(grey)
    assert grey.observation_space.shape == (3, *box.shape[:2])


@contextlib.contextmanager
def skipped_without_a_renderer():
    try:
        yield
    except MissingDependencyError as error:
        pytest.skip(str(error))


def with_rendering():
    """Return every wrapper over one contract and one over the others, since wrappers treat all images alike."""
    names = [row.name for row in TABLE if row.verdict in (RENDERED, PIXELS)]
    return [(CONTRACTS[0], name) for name in names] + [(name, "AddRenderObservation") for name in CONTRACTS[1:]]


@pytest.mark.parametrize(("contract", "name"), with_rendering())
@pytest.mark.long
def test_the_wrapper_works_with_a_renderer(make, contract, name):
    row = ROWS[name]
    skip_without_packages(row)
    env = make(contract, backend="mujoco", render_mode="rgb_array")
    with skipped_without_a_renderer():
        env.reset(seed=1)
        env.render()
    env = wrap_all(env, *row.stack)
    episode(env, steps=2)
    env.render()
    env.close()


@pytest.mark.parametrize(
    ("contract", "backend"),
    [
        ("arm_reach", "mujoco"),
        ("door_open", "fake"),  # it has all kinds of keys
        *(pytest.param(name, "fake", marks=pytest.mark.long) for name in ("arm_reach", "cart_goal")),
        *(pytest.param(name, "mujoco", marks=pytest.mark.long) for name in ("cart_goal", "door_open")),
    ],
)
@pytest.mark.parametrize("stack", STACKS, ids=" ".join)
def test_a_stack_works_inside_the_recorder(contract, make, tmp_path, stack, backend):
    env = RecordTransitions(wrap_all(make(contract, backend=backend), *stack), tmp_path)
    with skipped_without_a_renderer(), contextlib.closing(env):
        episode(env)
    run = read_run(env.path)
    assert len(list(run.transitions())) == STEPS
    _, *recorded, _ = (layer["class"].split(":")[1] for layer in run.manifest["wrappers"])
    assert tuple(reversed(recorded)) == stack


def test_chunks_go_outside_the_recorder(contract, make, tmp_path):
    inner = RecordTransitions(wrap_all(make(contract), "FlattenObservation", "RecordEpisodeStatistics"), tmp_path)
    with contextlib.closing(ActionChunks(inner, 3)) as env:
        env.reset(seed=3)
        env.action_space.seed(3)
        observation, *_, info = env.step(env.action_space.sample())
    assert observation in env.observation_space
    assert len(list(read_run(inner.path).transitions())) == info["chunk_result"]["executed"] >= 1


def short(kind):
    """Return the arm's contract with three steps, and no success."""
    changes = {"episode": {"horizon_steps": 3, "kind": kind}, "task.success_radius_m": 0.000001}
    return changed_contract("arm_reach", changes)


def run_out(env):
    """Step to the end and return the results of `reset` and each step as (observation, terminated, truncated, info)."""
    observation, info = env.reset(seed=1)
    seen = [(observation, False, False, info)]
    while not any(seen[-1][1:3]):
        observation, _, *flags, info = env.step(env.action_space.sample())
        seen.append((observation, *flags, info))
    return seen


@pytest.mark.parametrize("wrap", [(), ("TransformReward",), ("FlattenObservation",)])
@pytest.mark.parametrize("kind", ["finite_horizon", "time_limit"])
def test_a_finite_horizon_terminates_and_counts_down_and_a_time_limit_truncates(make, kind, wrap):
    bare = make(short(kind))
    seen = run_out(wrap_all(bare, *wrap, "RecordEpisodeStatistics"))
    info, space = seen[-1][3], bare.observation_space
    assert info["episode"]["l"] == info["step_index"] == 3
    is_finite = kind == "finite_horizon"
    assert (*seen[-1][1:3], info["end_reason"]) == (is_finite, not is_finite, "horizon" if is_finite else kind)
    assert ("time_remaining" in space.spaces) is is_finite
    if is_finite:
        seen = [
            gymnasium.spaces.unflatten(space, each) if wrap == ("FlattenObservation",) else each for each, *_ in seen
        ]
        assert [each["time_remaining"].tolist() for each in seen] == [[1.0], [2 / 3], [1 / 3], [0.0]]
