"""Segments of runs have the times of the ledger and gaps, and some runs are refused by name."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_arm import CONTRACT, fitted_arm, record_motion

import embodied_env
from embodied_env import NoAction
from embodied_env.contract import Contract, parse_contract
from embodied_env.extensions.identification.recorded_motion import IdentificationError, RunMotion, read_motion
from embodied_env.record.row_types import RecordedRow
from embodied_env.record.run import Run, read_run
from embodied_env.record.run_writer import LOG

PERIOD_NS = 50_000_000


@dataclass(frozen=True, kw_only=True)
class ChangedRun(Run):
    """A run on a world in real time, whose rows are changed."""

    change: Callable[[int, Any], None]

    def rows(self) -> Iterator[RecordedRow]:
        for number, row in enumerate(super().rows()):
            changed: Any = copy.deepcopy(row)
            if number:
                observed_ns = changed["inner"]["now_ns"] - 7 * PERIOD_NS  # on another clock than the world's
                changed["inner"]["stamps_ns"] |= {"observed": observed_ns, "published": observed_ns - 30_000_000}
            self.change(number, changed)
            yield changed


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return fitted_arm(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Run:
    return read_run(record_motion(contract, tmp_path_factory.mktemp("runs"), seconds=2.0))


def changed(run: Run, change: Callable[[int, Any], None] = lambda _number, _row: None) -> ChangedRun:
    return ChangedRun(path=run.path, manifest={**run.manifest, "pacing": "realtime"}, change=change)


def read(run: Run, contract: Contract) -> RunMotion:
    return read_motion(run, contract, segment_steps=6, warm_up_steps=4)


def test_a_segment_of_a_lockstep_run_has_the_times_of_the_world(run: Run, contract: Contract) -> None:
    motion = read(run, contract)
    first, second = motion.segments[:2]
    assert len(motion.segments) == 6
    assert [at_ns for at_ns, _ in first.commands] == [k * PERIOD_NS for k in range(10)]
    assert sorted(set(first.read_ns)) == [k * PERIOD_NS for k in range(5, 11)]  # without the warm-up
    np.testing.assert_array_equal(first.start, 0.0)
    rows = list(run.transitions())
    assert second.values[:2] == tuple(rows[10]["inner"]["observation"]["joints_position"])
    np.testing.assert_array_equal(second.before, [*rows[5]["info"]["action"]["applied_si"].values()])


def test_a_command_in_real_time_counts_from_its_publication(run: Run, contract: Contract) -> None:
    segment = read(changed(run), contract).segments[1]
    assert [at_ns for at_ns, _ in segment.commands] == [k * PERIOD_NS for k in range(10)]
    assert sorted(set(segment.read_ns)) == [30_000_000 + k * PERIOD_NS for k in range(4, 10)]
    lockstep = read(run, contract).segments[1]
    moved = lockstep.start[0] + 0.02 * lockstep.start[1]  # the reading is 20 ms older than the command
    np.testing.assert_allclose(segment.start[0], moved, atol=1e-9)


def delay(row: Any) -> None:
    row["inner"]["stamps_ns"]["published"] += 26_000_000


def jump(row: Any) -> None:
    row["inner"]["clock"] = {"jump": "stepped"}


def lose_joint(row: Any) -> None:
    del row["info"]["action"]["applied_si"]["j2"]


@pytest.mark.parametrize(
    ("change", "gap"), [(delay, "late commands"), (jump, "clock jumps"), (lose_joint, "unknown commands")]
)
def test_a_step_that_cannot_be_used_ends_a_stretch(run: Run, contract: Contract, change: Any, gap: str) -> None:
    motion = read(changed(run, lambda number, row: change(row) if number == 15 else None), contract)
    assert motion.gaps == {gap: 1}
    assert len(motion.segments) == 1 + 3


def test_a_lost_reading_is_left_out(run: Run, contract: Contract) -> None:
    def lose(number: int, row: Any) -> None:
        if number == 6:
            row["info"]["sensors"]["joints"]["quality"] = 1

    whole, lost = (read(each, contract).segments[0] for each in (changed(run), changed(run, lose)))
    assert len(lost.values) == len(whole.values) - 2


def test_braked_steps_end_a_stretch(tmp_path: Path, contract: Contract) -> None:
    env = embodied_env.make(contract, backend="mujoco", record=tmp_path)
    env.reset(seed=0)
    for step in range(30):
        env.step(NoAction("late") if step in (12, 13) else np.full(2, 0.5 * (-1) ** (step // 5)))
    env.close()
    motion = read(read_run(next(tmp_path.iterdir())), contract)
    assert motion.gaps == {"steps braked by form.none": 2}
    assert len(motion.segments) == 3


def test_a_run_without_motion_is_refused(tmp_path: Path, contract: Contract) -> None:
    still = read_run(record_motion(contract, tmp_path, seconds=1.0, size=0.001))
    with pytest.raises(
        IdentificationError, match=f"run {still.path.name} has no excitation: no joint moved on command"
    ):
        read(still, contract)


def test_a_run_of_another_robot_is_refused(run: Run, contract: Contract) -> None:
    other = parse_contract(
        CONTRACT.replace("NOISE", "0").replace("velocity: 3.0", "velocity: 2.0"), source=contract.source
    )
    expected = rf"run {run.path.name} is of another robot: actuators.arm.joints.j1.velocity 3 \(expected 2\); also 1"
    with pytest.raises(IdentificationError, match=expected):
        read(run, other)


def test_a_run_with_a_saturated_gate_is_refused(tmp_path: Path, contract: Contract) -> None:
    env = embodied_env.make(contract, backend="mujoco", record=tmp_path)
    env.reset(seed=0)
    for step in range(30):
        env.step(np.full(2, (-1.0) ** (step // 2)))
    env.close()
    run = read_run(next(tmp_path.iterdir()))
    with pytest.raises(IdentificationError, match=rf"run {run.path.name} is saturated: the gate limited \d+ % .*acc"):
        read(run, contract)


def test_a_run_whose_rows_were_changed_is_refused(tmp_path: Path, contract: Contract) -> None:
    folder = record_motion(contract, tmp_path, seconds=1.0)
    log = folder / LOG
    log.write_bytes(log.read_bytes()[:-200])
    with pytest.raises(IdentificationError, match=f"run {folder.name} is not sound"):
        read(read_run(folder), contract)


def test_a_run_of_a_base_without_measured_joints_is_refused(tmp_path: Path) -> None:
    env = embodied_env.make("cart_goal", backend="mujoco", record=tmp_path)
    env.reset(seed=0)
    env.close()
    with pytest.raises(IdentificationError, match="no commanded joint is measured"):
        read(read_run(next(tmp_path.iterdir())), embodied_env.load_contract("cart_goal"))


def test_commands_are_read_by_the_names_of_the_joints(run: Run, contract: Contract) -> None:
    def reverse(number: int, row: Any) -> None:
        if number:
            action = row["info"]["action"]
            action["applied_si"] = dict(reversed(action["applied_si"].items()))

    commands = [[values for _, values in each.commands] for each in read(changed(run, reverse), contract).segments]
    expected = [[values for _, values in each.commands] for each in read(changed(run), contract).segments]
    np.testing.assert_array_equal(commands, expected)


def test_a_row_without_the_sensor_has_no_reading(run: Run, contract: Contract) -> None:
    def remove(number: int, row: Any) -> None:
        if number == 20:
            del row["inner"]["sensors"]["joints"]

    counts = [
        sum(len(each.values) for each in read(one, contract).segments) for one in (changed(run), changed(run, remove))
    ]
    assert counts[0] - counts[1] == 2
