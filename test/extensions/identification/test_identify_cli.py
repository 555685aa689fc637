import json
from pathlib import Path

import pytest
from fitted_arm import TRUTH, fitted_arm, record_motion

from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.errors import UsageError
from embodied_env.extensions.identification.identify_cli import parse_parameter
from embodied_env.extensions.identification.rollouts import Parameter
from embodied_env.sim.identified_parameters import read_identified


def test_writes_the_file_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = fitted_arm(tmp_path)
    (tmp_path / "contract.yaml").write_text(contract.text, encoding="utf-8")
    truth = {key: value for key, value in TRUTH.items() if key in {("gain", "j1"), ("damping", "j1")}}
    run = record_motion(fitted_arm(tmp_path / "truth", truth), tmp_path / "runs", seconds=7.0)
    out, page = tmp_path / "arm.identified.yaml", tmp_path / "page.html"
    arguments = ["identify", str(run), "--contract", str(tmp_path / "contract.yaml"), "--out", str(out)]
    arguments += ["--segment", "0.5", "--parameters", "gain.j1=20..90", "damping.j1", "--report", str(page)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "gain.j1" in printed
    assert f"{out}: " in printed
    model = read_identified(out)
    kinds = {each.kind for each in model.parameters} | {each.kind for each in model.undetermined}
    assert kinds == {"gain", "damping"}
    html = page.read_text(encoding="utf-8")
    for text in ("gain.j1", "Nearer to held-out data", "measured", "before", "after", run.name, "RMS before"):
        assert text in html
    assert main([*arguments[:8], "--parameters", "gain.j1", "--json", "--force"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_better"], "j1" in printed["unexplained"]) == (True, True)


def test_a_parameter_is_of_each_joint_of_one_or_shared() -> None:
    contract = load_contract("arm_reach")
    joints = [f"j{number}" for number in range(1, 7)]
    assert parse_parameter("gain", contract) == [Parameter(kind="gain", of=(joint,)) for joint in joints]
    assert parse_parameter("damping.j1+j2=1..5.5", contract) == [
        Parameter(kind="damping", of=("j1", "j2"), low=1.0, high=5.5)
    ]
    assert parse_parameter("mass.link.6", contract) == [Parameter(kind="mass", of=("link.6",))]
    assert parse_parameter("command_delay=0..0.1", contract) == [Parameter(kind="command_delay", low=0.0, high=0.1)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colour", "'colour' .expected KIND"),
        ("", "expected KIND"),
        ("mass", "expected the name of a body"),
        ("command_delay.j1", "expected no name"),
        ("gain.j1=5..1", "bounds of 'gain.j1=5..1'"),
        ("gain.j1=a..b", "bounds of"),
        ("gain.j1=0..inf", "bounds of"),
        ("gain.j1=nan..1", "bounds of"),
    ],
)
def test_refuses_a_parameter(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_parameter(text, load_contract("arm_reach"))
