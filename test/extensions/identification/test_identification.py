"""Fits to recorded runs of an arm with known parameters, and what the runs leave undetermined."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fitted_arm import TRUTH, fitted_arm, record_motion

from embodied_env.contract import Contract, parse_contract
from embodied_env.errors import UsageError
from embodied_env.extensions.identification.identification import (
    Identification,
    default_parameters,
    identify,
    near_readings,
)
from embodied_env.extensions.identification.recorded_motion import IdentificationError
from embodied_env.extensions.identification.rollouts import Parameter
from embodied_env.record.run import read_run
from embodied_env.sim.identified_parameters import parameter_name, read_identified, write_identified
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile

PARAMETERS = [Parameter(kind=kind, of=(name,) if name else ()) for kind, name in TRUTH]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recorded run of the arm with other parameters than its model."""
    folder = tmp_path_factory.mktemp("run")
    return record_motion(fitted_arm(folder / "truth", TRUTH, noise=0.001), folder / "runs", seconds=14.0)


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return fitted_arm(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def fit(run: Path, contract: Contract) -> Identification:
    return identify([run], contract, PARAMETERS)


def test_finds_the_parameters_of_the_recorded_world(fit: Identification) -> None:
    assert not fit.model.undetermined
    for each in fit.model.parameters:
        truth = TRUTH[each.kind, "".join(each.of)]
        assert each.value == pytest.approx(truth, rel=0.05), each
        assert each.low <= truth <= each.high, each
    assert [each.model for each in fit.model.parameters] == [60.0, 4.0, 0.2, 0.5, 0.0]


def test_is_nearer_to_held_out_data_by_the_noise_of_the_sensor(fit: Identification) -> None:
    assert fit.is_better
    assert (fit.model.segments, fit.model.held_out) == (10, 3)
    for each in fit.model.residuals.values():
        assert each.after == pytest.approx(0.001, rel=0.3)
        assert each.before > 0.01
    for trace in fit.traces:
        assert abs(trace.after - trace.measured).max() < 0.005
        assert len(trace.times_s) == len(trace.before) == 20


def test_names_the_run_and_the_packages(fit: Identification, run: Path) -> None:
    (source,) = fit.model.runs
    assert (source.name, source.sha256, source.backend) == (run.name, read_run(run).chain.head, "mujoco (simulator)")
    assert fit.model.versions.keys() == {"embodied_env", "mujoco", "numpy", "scipy"}


def test_a_contract_with_the_file_simulates_the_recorded_world(
    fit: Identification, run: Path, contract: Contract
) -> None:
    folder = Path(contract.source).parent
    write_identified(fit.model, folder / "arm.identified.yaml")
    assert read_identified(folder / "arm.identified.yaml") == fit.model
    own = parse_contract(contract.text + "    identified: {file: arm.identified.yaml}\n", source=contract.source)
    worlds = [World(each, load_profile(each, "mujoco")) for each in (own, contract)]
    errors = []
    for world in worlds:
        world.reset(0, {})
        ways = []
        for row in list(read_run(run).transitions())[:40]:
            world.command(np.array([*row["info"]["action"]["applied_si"].values()]))
            world.step()
            ways.append(world.positions - row["inner"]["observation"]["joints_position"])
        errors.append(abs(np.array(ways)).max())
    assert errors[0] < 0.01
    assert errors[1] > 0.05


def test_joints_may_share_a_value_within_bounds(run: Path, contract: Contract) -> None:
    shared = Parameter(kind="gain", of=("j1", "j2"), low=39.0, high=41.0)
    model = identify([run], contract, [shared]).model
    (left,) = model.undetermined
    assert left.reason.startswith("its value is at the bound ")
    assert (left.of, left.model, model.parameters) == (("j1", "j2"), 50.0, ())


def test_what_the_noise_hides_is_left_alone(tmp_path: Path, contract: Contract) -> None:
    run = record_motion(fitted_arm(tmp_path / "truth", TRUTH, noise=0.03), tmp_path / "runs", seconds=12.0)
    model = identify([run], contract, [PARAMETERS[0], PARAMETERS[2]]).model
    (left,) = model.undetermined
    assert (left.kind, left.model) == ("friction_loss", 0.2)
    assert "95 % interval" in left.reason
    assert "more than 15 % to a side" in left.reason
    assert [each.kind for each in model.parameters] == ["gain"]


def test_a_parameter_that_is_given_twice_is_refused(run: Path, contract: Contract) -> None:
    twins = [Parameter(kind="damping", of=("j1",)), Parameter(kind="damping", of=("j1", "j2"))]
    with pytest.raises(UsageError, match=r"parameter given twice: damping.j1 .expected once"):
        identify([run], contract, twins)


def test_a_fit_without_a_parameter_that_differs_names_the_joints_that_it_does_not_explain(
    fit: Identification, run: Path, contract: Contract
) -> None:
    wrong = identify([run], contract, [PARAMETERS[1]]).model
    assert (fit.model.unexplained, wrong.unexplained) == ((), ("j1", "j2"))
    assert not any(each.low <= TRUTH["damping", "j1"] <= each.high for each in wrong.parameters)


def test_residuals_of_a_joint_that_wraps_are_those_of_the_nearest_turn() -> None:
    rollouts: Any = SimpleNamespace(readings=np.array([-3.1, 0.5]), joints=np.array([0, 1]))
    joints: Any = [SimpleNamespace(wraps=True), SimpleNamespace(wraps=False)]
    near = near_readings(rollouts, np.array([3.15, 7.0]), joints)
    assert near.tolist() == [pytest.approx(3.15 - 2.0 * np.pi), 7.0]


def test_a_run_that_is_given_twice_is_refused(run: Path, contract: Contract) -> None:
    with pytest.raises(UsageError, match=r"run given twice: .* and .* have the same rows"):
        identify([run, run], contract, PARAMETERS)


def test_joints_that_did_not_move_are_left_alone(tmp_path: Path, contract: Contract) -> None:
    truth = {key: value for key, value in TRUTH.items() if key[0] != "command_delay"}
    run = record_motion(fitted_arm(tmp_path / "truth", truth), tmp_path / "runs", seconds=12.0, joints=[0], size=0.2)
    model = identify([run], contract, [PARAMETERS[0], Parameter(kind="damping", of=("j2",))]).model
    (left,) = model.undetermined
    assert (left.of, left.model, left.reason) == (("j2",), 1.0, "its joints did not move")
    assert len(model.parameters) == 1


def test_parameters_of_which_no_joint_moved_are_refused(tmp_path: Path, contract: Contract) -> None:
    run = record_motion(fitted_arm(tmp_path / "truth"), tmp_path / "runs", seconds=2.0, joints=[0])
    with pytest.raises(IdentificationError, match=r"nothing to fit: the joints of damping.j2 did not move"):
        identify([run], contract, [Parameter(kind="damping", of=("j2",))])


def test_the_default_parameters_are_those_of_each_joint_and_the_delay(contract: Contract) -> None:
    names = [parameter_name(each.kind, each.of) for each in default_parameters(contract)]
    kinds = ("gain", "damping", "friction_loss", "armature")
    assert names == [*(f"{kind}.{joint}" for kind in kinds for joint in ("j1", "j2")), "command_delay"]


def test_more_parameters_than_the_segments_can_determine_are_refused(run: Path, contract: Contract) -> None:
    expected = r"too little data: 10 segments without a gap \(expected 18 for 9 parameters\)"
    with pytest.raises(IdentificationError, match=expected):
        identify([run], contract)
