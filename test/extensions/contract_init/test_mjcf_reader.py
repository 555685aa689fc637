"""The draft of `contract init --mjcf` runs in the user's model."""

from pathlib import Path

import pytest
from own_models import write_model

import embodied_env
from embodied_env.cli.main import main


def drafted(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    file, model = folder / "drafts" / "own.yaml", write_model(kind, folder / "model")
    assert main(["contract", "init", "own", "--mjcf", str(model), "-o", str(file)]) == 0
    return file, capsys.readouterr().out


@pytest.mark.parametrize("kind", ["arm", "motors", "hand_eye"])
def test_the_draft_of_a_model_runs_in_that_model(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = drafted(kind, tmp_path, capsys)
    assert main(["contract", "validate", str(file)]) == 0
    env = embodied_env.make(file, backend="mujoco")
    env.reset(seed=0)
    for _ in range(20):
        *_, terminated, truncated, info = env.step(env.action_space.high)
        assert (terminated, truncated) == (False, False), info["end_reason"]
    contract = env.unwrapped.contract
    env.close()
    assert tuple(contract.actuators["arm"].joints) == ("m1", "m2")
    assert contract.backends["mujoco"]["model"].startswith("../model/")


def test_the_gains_chosen_for_motors_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, printed = drafted("motors", tmp_path, capsys)
    assert "servo gains of the motors" in printed
    assert embodied_env.load_contract(file).backends["mujoco"]["servo_gains"]["m1"]["stiffness"] > 0


def test_a_start_outside_the_limits_gets_a_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model("arm", tmp_path / "model")
    robot = tmp_path / "model" / "robot.xml"
    robot.write_text(robot.read_text().replace('axis="0 1 0" range="-2 2"', 'axis="0 1 0" range="0.5 2.5"'))
    file = tmp_path / "own.yaml"
    assert main(["contract", "init", "own", "--mjcf", str(model), "-o", str(file)]) == 0
    assert embodied_env.load_contract(file).backends["mujoco"]["home"] == {"m2": 0.6}
    embodied_env.make(file, backend="mujoco").close()


@pytest.mark.parametrize("limits", ["0 0.03", "0 0.3", "-0.0251 0", "1.2344 1.6344"])
def test_a_home_is_inside_the_rounded_margin_of_a_small_range(limits: str, tmp_path: Path) -> None:
    model = write_model("arm", tmp_path / "model")
    robot = tmp_path / "model" / "robot.xml"
    robot.write_text(robot.read_text().replace('axis="0 1 0" range="-2 2"', f'axis="0 1 0" range="{limits}"'))
    file = tmp_path / "own.yaml"
    assert main(["contract", "init", "own", "--mjcf", str(model), "-o", str(file)]) == 0
    assert main(["contract", "validate", str(file)]) == 0


def test_wheels_are_reported_and_not_commanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, printed = drafted("base", tmp_path, capsys)
    assert "joint wheel_left_joint is not commanded: its servo takes velocities" in printed
    assert "mujoco" not in embodied_env.load_contract(file).backends
