"""The rows of a batched slot equal those of a single recorded environment with the same seeds and actions."""

import functools
import json
import os
import signal

import numpy as np
import pytest
from batches import SHIPPED, UNUSUAL, Failing, arm_with, arm_with_two_actuators, assert_same, unusual_arm
from evidence import assert_replays, assert_sound
from gymnasium.vector import AutoresetMode
from run_files import unlinked
from shipped_contracts import changed_contract
from unit_contracts import driver_units_contract

import embodied_env
from embodied_env.errors import TaskError, UsageError
from embodied_env.record.writer_thread import MAX_JOBS_IN_LOCKSTEP

pytestmark = pytest.mark.usefixtures("batch_few_slots")

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


@pytest.fixture
def recorded_pair(pair, tmp_path):
    return functools.partial(pair, record=tmp_path)


def rows_of(folder):
    """Return the run of each slot with its rows, an image as its array."""
    found = []
    for slot in sorted(folder.iterdir()):
        (path,) = slot.iterdir()
        run = embodied_env.read_run(path)
        found.append((path, [_loaded(run, unlinked(row)) for row in run.rows()]))
    return found


def _loaded(run, value):
    if isinstance(value, dict) and value.keys() == {"sha256", "dtype", "shape"}:
        return run.array(value)
    if isinstance(value, dict):
        return {key: _loaded(run, item) for key, item in value.items()}
    return value


def assert_rows_equal(both, folder, *, n_replayed=1):
    """Close both, compare the rows of each slot, audit all runs of ours, and replay some."""
    both.close()
    ours, theirs = rows_of(folder / "ours"), rows_of(folder / "theirs")
    assert len(ours) == len(theirs) == both.ours.num_envs
    for slot, ((path, rows), (_, expected)) in enumerate(zip(ours, theirs, strict=True)):
        assert len(rows) == len(expected)
        for row, other in zip(rows, expected, strict=True):
            assert_same(row, other, f"slot {slot}, row {other['row']}")
        assert_sound(path)
        if slot < n_replayed:
            assert_replays(path)
    return ours


def small_door():
    """Return the door with images that are resized, and hashed before."""
    resize = {"size": [4, 6], "method": "crop", "resample": "nearest"}
    return changed_contract(
        "door_open", {f"sensors.{name}.fields.image.resize": resize for name in ("camera", "depth")}
    )


def often_changed():
    """Return an arm whose gate soon reports how often it changes actions."""
    return changed_contract("so101_reach", {"safety.intervention": {"window_steps": 3, "warn_share": 0.5}})


CASES = {
    "next step": ("arm_reach", NEXT_STEP, 12, ["acc.limit"]),
    "same step": ("cart_goal", SAME_STEP, 8, ["confidence"]),
    "disabled": (often_changed, DISABLED, 8, ["box.clip", "rate.intervention"]),
    "several actuators": (arm_with_two_actuators, NEXT_STEP, 8, ["jerk.limit"]),
    "all that is drawn or irregular": (unusual_arm, SAME_STEP, 12, ["outside its declared range"]),
    "units of a driver": (driver_units_contract, NEXT_STEP, 8, ["driver"]),
    "images": (small_door, NEXT_STEP, 1, ["raw_sha256"]),
}
LONG = {f"{contract}, {mode.name}": (contract, mode, 60, []) for contract in SHIPPED for mode in AutoresetMode}


@pytest.mark.parametrize(
    ("contract", "mode", "steps", "has"),
    [*CASES.values(), *(pytest.param(*each, marks=pytest.mark.long) for each in LONG.values())],
    ids=[*CASES, *LONG],
)
def test_rows_equal_those_of_single_environments(recorded_pair, tmp_path, contract, mode, steps, has):
    both = recorded_pair(
        contract() if callable(contract) else contract, mode, num_envs=2 if contract is small_door else 3
    )
    for step in range(steps):
        drawn = both.ours.action_space.sample()
        both.step(2.0 * drawn if step % 2 and contract is often_changed else drawn)
    assert both.ours.batched_share > 0.2
    runs = assert_rows_equal(both, tmp_path)
    text = json.dumps([rows for _, rows in runs], default=repr)
    assert [each for each in has if each not in text] == []


@pytest.mark.parametrize("mode", AutoresetMode)
def test_rows_of_unusual_actions_resets_marks_and_steps_of_single_slots(recorded_pair, tmp_path, mode):
    both, rng = recorded_pair("arm_reach", mode), np.random.default_rng(4)
    for env in (both.ours, both.theirs):
        env.envs[0].unwrapped.annotate("note", {"of": "one slot"})
        env.step(np.zeros((3, 6)))
    for step in range(10):
        rows = list(both.ours.action_space.sample())
        if step % 3 == 1:
            rows[step % 2] = UNUSUAL[rng.integers(len(UNUSUAL))]
        both.step(rows)
        for env in (both.ours, both.theirs):
            if step == 3:
                env.envs[1].unwrapped.mark("policy")
            if step == 4:
                env.envs[2].step(rows[2])
        if step == 8:
            both.reset(seed=[5, None, 6], options={"reset_mask": np.array([True, False, True])})
    both.step(np.ma.masked_array(both.ours.action_space.sample(), mask=True))
    assert 0.2 < both.ours.batched_share < 1.0
    assert_rows_equal(both, tmp_path)


def test_the_step_of_a_failing_task_is_recorded(recorded_pair, tmp_path):
    both = recorded_pair(arm_with(Failing), DISABLED)
    actions = np.zeros((3, 6))
    both.step(actions)
    actions[2, 0] = 0.5  # the last one, since Gymnasium's stops there
    for env in (both.ours, both.theirs):
        with pytest.raises(TaskError):
            env.step(actions)
    runs = assert_rows_equal(both, tmp_path, n_replayed=0)
    assert [rows[-1]["info"]["end_reason"] for _, rows in runs] == ["", "", "task_error:RuntimeError"]


def recorded(folder, **options):
    env = embodied_env.make_vec("arm_reach", num_envs=5, record=folder, **options)
    env.action_space.seed(0)
    env.reset(seed=0)
    return env


def test_batches_on_a_steady_clock_are_sound_and_replay(close_later, tmp_path):
    env = close_later(recorded(tmp_path))
    for step in range(4):
        if step == 2:
            env.mark("policy")
        infos = env.step(env.action_space.sample())[-1]
    assert "handoff_s" not in infos["latency"]
    assert infos["record"]["complete"].all()
    assert not infos["record"]["lost"].any()
    assert env.batched_share == 1.0
    env.close()
    for path, rows in rows_of(tmp_path):
        assert ["marked" in row["inner"]["stamps_ns"] for row in rows[1:]] == [False, False, True, False]
        assert_sound(path, transitions=4)
        assert_replays(path)


def test_a_failing_disk_ends_only_the_record_of_its_slot(close_later, tmp_path):
    env = close_later(recorded(tmp_path, clock="virtual"))
    env.step(env.action_space.sample())
    (env.envs[2].path / "transitions.mcap").unlink()

    def step_beyond_a_flush():
        env.step(env.action_space.sample())  # the thread may flush by itself
        env.envs[2].flush()
        return env.step(env.action_space.sample())[-1]

    with pytest.warns(UserWarning, match="slot_2"):
        infos = step_beyond_a_flush()
    assert infos["record"]["complete"].tolist() == [True, True, False, True, True]
    assert (infos["record"]["lost"] > 0).tolist() == [False, False, True, False, False]
    env.close()
    manifests = [json.loads((slot.path / "manifest.json").read_text()) for slot in env.envs]
    assert [manifest["clean"] for manifest in manifests] == [True, True, False, True, True]


def test_sigkill_loses_no_flushed_row_and_at_most_the_queue(tmp_path):
    child = os.fork()
    if not child:
        env = recorded(tmp_path)
        for step in range(90):
            if step == 80:
                env.envs[0].flush()
            env.step(np.zeros((5, 6)))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    runs = [embodied_env.read_run(*slot.iterdir()) for slot in sorted(tmp_path.iterdir())]
    counts = [len(list(run.transitions())) for run in runs]
    assert len(counts) == 5
    assert counts[0] >= 80
    assert min(counts) >= 90 - MAX_JOBS_IN_LOCKSTEP
    assert not any(run.clean for run in runs)


def test_slots_without_rows_leave_no_folder(tmp_path):
    embodied_env.make_vec("arm_reach", num_envs=2, record=tmp_path / "closed").close()
    with pytest.raises(UsageError, match="unsupported threads with fake"):
        embodied_env.make_vec("arm_reach", num_envs=2, record=tmp_path / "failed", backend="fake", threads=2)
    assert list(tmp_path.iterdir()) == []
