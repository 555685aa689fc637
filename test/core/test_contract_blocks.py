"""A contract block is plain data when a contract is read, and needs its plug-in when it is used."""

import json

import pytest
import yaml
from distributions import install
from evidence import assert_replays, assert_sound
from strategies import changed, document, parse

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import parse_contract, restore_contract, save_contract
from embodied_env.core.contract_blocks import check_blocks, load_block
from embodied_env.errors import ContractError

PARTY = """
from dataclasses import dataclass
from embodied_env.core.contract_blocks import ContractBlock

@dataclass(frozen=True, kw_only=True)
class Lamp:
    colour: str
    watts: float = 1.0

lamp = ContractBlock(schema=Lamp)
note = ContractBlock(schema=Lamp, in_fingerprint=False)
"""
TASK = changed("task", {"type": "no_goal"})
PLAIN = parse(TASK).fingerprint


@pytest.fixture
def party(monkeypatch, tmp_path):
    points = {"lamp": "a_block_party:lamp", "note": "a_block_party:note"}
    install(monkeypatch, tmp_path, {"contract_blocks": points}, a_block_party=PARTY)


def contract_with(**blocks):
    return parse(changed("blocks", blocks, TASK))


@pytest.mark.usefixtures("party")
def test_block_is_parsed_by_the_schema_of_its_plug_in_and_missed_by_name():
    contract = contract_with(lamp={"colour": "red"}, note={"colour": "red", "fingerprint": False})
    assert check_blocks(contract) == ()
    assert (load_block(contract, "lamp").colour, load_block(contract, "lamp").watts) == ("red", 1.0)
    assert restore_contract(save_contract(contract)) == contract
    with pytest.raises(ContractError, match=r"blocks\.lamp: missing block"):
        load_block(contract_with(), "lamp")


@pytest.mark.usefixtures("party")
@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ({"lamp": {"color": "red"}}, "blocks.lamp.color: unknown key 'color' .*did you mean 'colour'"),
        ({"lamp": {"colour": 3}}, "blocks.lamp.colour: 3 .expected text"),
        ({"lamp": {"colour": "red", "fingerprint": False}}, "blocks.lamp.fingerprint: .*expected true"),
        ({"note": {"colour": "red"}}, "blocks.note.fingerprint: .*expected false"),
        ({"lmap": {}}, "blocks.lmap: unknown name 'lmap' .*embodied_env.contract_blocks.*did you mean 'lamp'"),
    ],
)
def test_wrong_block_is_refused_when_the_contract_is_used(blocks, problem):
    with pytest.raises(ContractError, match=problem):
        embodied_env.make(contract_with(**blocks), backend="fake")


@pytest.mark.parametrize(
    "blocks", [{"Lamp": {}}, {"lamp": 3}, {"lamp": {"fingerprint": 1}}, {"lamp": {"x": float("nan")}}]
)
def test_block_that_is_no_plain_data_is_refused_when_the_contract_is_read(blocks):
    with pytest.raises(ContractError, match=r"blocks\."):
        contract_with(**blocks)


def test_key_outside_of_blocks_is_never_a_block():
    with pytest.raises(ContractError, match=r"safty: unknown key 'safty' .*did you mean 'safety'"):
        parse(changed("safty", {}))


def test_fingerprint_is_that_of_the_text_without_any_plug_in():
    one, two = ({"colour": "red", "watts": watts} for watts in (1, 2))
    assert contract_with(lamp=one).fingerprint not in (PLAIN, contract_with(lamp=two).fingerprint)
    assert contract_with(lamp=one).fingerprint == contract_with(lamp={**one, "fingerprint": True}).fingerprint
    assert contract_with(note={**one, "fingerprint": False}).fingerprint == PLAIN


def test_contract_without_the_plug_in_of_its_block_is_shown_and_refused_by_name(tmp_path, capsys):
    file = tmp_path / "contract.yaml"
    file.write_text(yaml.safe_dump(changed("blocks", {"lamp": {"colour": "red"}}, TASK)))
    assert main(["contract", "fingerprint", str(file)]) == 0
    assert main(["contract", "show", str(file), "--json"]) == 0
    assert "lamp" in capsys.readouterr().out
    for arguments in (["contract", "validate", str(file)], ["sim", str(file)]):
        assert main(arguments) == 2
        assert "blocks.lamp: unknown name 'lamp'" in capsys.readouterr().err


@pytest.mark.usefixtures("party")
def test_recorded_run_of_a_contract_with_a_block_is_audited_and_replayed_without_it(tmp_path, monkeypatch):
    env = embodied_env.make(contract_with(lamp={"colour": "red"}), backend="fake", record=tmp_path / "runs")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()
    monkeypatch.undo()
    assert_sound(env.path)
    assert_replays(env.path)
    recorded = json.loads((env.path / "manifest.json").read_text())["contract"]["text"]
    assert dict(parse_contract(recorded, trusted=False).blocks["lamp"]) == {"colour": "red"}


def test_blocks_of_a_robot_file_are_merged(tmp_path):
    whole = document()
    keys: dict = {key: whole.pop(key) for key in ("sensors", "actuators", "safety", "backends") if key in whole}
    robot = {"robot": "embodied_env/1", "name": "r", **keys, "blocks": {"lamp": {"colour": "red", "watts": 2}}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(robot))
    whole |= {"robot": "r.yaml", "blocks": {"lamp": {"colour": "blue"}}}
    contract = parse_contract(json.dumps(whole), source=str(tmp_path / "contract.yaml"))
    assert dict(contract.blocks["lamp"]) == {"colour": "blue", "watts": 2}
