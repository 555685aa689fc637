from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from strategies import ABSENT, changed, document, parse

import embodied_env
from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_loader import config_folders, find_contract
from embodied_env.contract.yaml_text import read_yaml
from embodied_env.errors import ContractError


def refusal(source):
    """Return the error of an invalid document."""
    with pytest.raises(ContractError) as caught:
        parse(source)
    return caught.value


def text_with(line, instead_of="version: 1"):
    text = yaml.safe_dump(document(), sort_keys=False)
    assert text.count(f"{instead_of}\n") == 1
    return text.replace(f"{instead_of}\n", f"{line}\n")


@pytest.mark.parametrize(
    ("path", "guess"),
    [
        ("safty", "safety"),
        ("episode.horizon_step", "horizon_steps"),
        ("sensors.joints.fields.position.no_retrun", "no_return"),
        ("actuators.arm.joints.a.velocty", "velocity"),
        ("safety.nonfinite.stop_aftr", "stop_after"),
        ("reset_options.target.hi", "high"),
    ],
)
def test_unknown_key_is_rejected_with_a_suggestion(path, guess):
    error = refusal(changed(path, 1))
    assert error.path == path
    assert error.problem.startswith(f"unknown key {path.rpartition('.')[2]!r} (expected one of: ")
    assert error.problem.endswith(f"; did you mean '{guess}'?")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("source", "unknown key (reserved for the loader)"),
        ("text", "unknown key (reserved for the loader)"),
        ("episode.zebra", "unknown key 'zebra' (expected one of: horizon_steps, kind)"),
        ("contract", "unknown schema 1 (expected embodied_env/1)"),
    ],
)
def test_keys_of_the_loader_and_other_schemas_are_refused(key, problem):
    assert str(refusal(changed(key, 1))) == f"<text>: {key}: {problem}"


@pytest.mark.parametrize(
    "path", ["name", "sensors", "sensors.tcp.topic", "actuators.arm.joints.b.position", "task.type"]
)
def test_a_missing_key_is_named(path):
    assert str(refusal(changed(path, ABSENT))) == f"<text>: {path}: missing key"


def test_a_twist_axis_needs_no_position():
    axes = {"linear.x": {"velocity": 1.0, "acceleration": 1.0, "unit": "m"}}
    twist = {"topic": "/cmd_vel", "type": "geometry_msgs/msg/Twist", "command": "twist", "joints": axes}
    short = parse(changed("actuators.base", twist))
    axes["linear.x"]["position"] = None
    assert short.actuators["base"].joints["linear.x"].position is None
    assert short.fingerprint == parse(changed("actuators.base", twist)).fingerprint


def test_misspelt_key_is_reported_before_missing_key():
    source = changed("sensors.tcp.max_age", 0.1, changed("sensors.tcp.max_age_s", ABSENT))
    assert refusal(source).path == "sensors.tcp.max_age"


@pytest.mark.parametrize(("kind", "other"), [("robot", ": a robot file"), ("team", ": a team file"), ("name", "")])
def test_file_of_another_kind_is_named(kind, other):
    error = refusal({kind: "embodied_env/1"})
    assert str(error) == f"<text>: contract: missing key{other} (expected contract: embodied_env/1)"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("control_period_s", float("nan"), "NaN (expected a finite number)"),
        ("control_period_s", float("inf"), "Infinity (expected a finite number)"),
        ("control_period_s", True, "true (expected a number)"),
        ("control_period_s", "0.05", '"0.05" (expected a number)'),
        ("control_period_s", None, "null (expected a number)"),
        ("version", 1.5, "1.5 (expected an integer)"),
        ("version", True, "true (expected an integer)"),
        ("name", 3, "3 (expected text)"),
        ("sensors.joints.mask", 1, "1 (expected true or false)"),
        ("sensors.joints.on_gap", "zero", "\"zero\" (expected 'hold' or 'stop')"),
        ("sensors", [], "[] (expected a mapping)"),
        ("backends.fake", None, "null (expected a mapping)"),
        ("actuators.arm.joints.a.position", 1.0, "1.0 (expected a list)"),
        ("actuators.arm.joints.a.position", [0, 1, 2], "[0, 1, 2] (expected at most 2 values)"),
        ("actuators.arm.joints.a.position", [float("nan"), 1.0], "[0]: NaN (expected a finite number)"),
        ("actuators.arm.joints.a.position", [1.0], "[1]: missing value"),
        ("sensors.tcp.fields.position.low", "x", '"x" (expected a number or a list)'),
        ("sensors.tcp.fields.position.low", [0, "x", 0], '[1]: "x" (expected a number)'),
        ("backends.fake.noise", [0.1, {"x": float("nan")}], "[1].x: nan (expected a finite number)"),
        ("task.success_radius_m", float("-inf"), "-inf (expected a finite number)"),
    ],
)
def test_wrong_type_reports_value_and_expected_type(path, value, problem):
    error = refusal(changed(path, value))
    place = error.path.removeprefix(path)
    assert (error.path, f"{place}: {error.problem}" if place else error.problem) == (path + place, problem)


def test_duplicate_key_is_rejected():
    with pytest.raises(ContractError, match=r"^<text>: version: duplicate key at line 4 \(first at line 3\)$"):
        parse_contract(text_with("version: 1\nversion: 2"))


@pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "[a]"])
def test_non_text_key_is_rejected(key):
    with pytest.raises(ContractError, match=r"the key .* at line 3 is not text: quote it$"):
        parse_contract(text_with(f"{key}: 2"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((written, 1e-3) for written in ("1e-3", "1E-3", ".001", "0.001", "+1.0e-3")),
        *((written, 10) for written in ("10", "010", "+10")),
        *((written, True) for written in ("true", "True", "TRUE")),
        *((written, None) for written in ("null", "~", "Null", "")),
        *((written, written) for written in ("1_0", "0x10", "0o7", "1:30", "2020-01-01", "y", "no", "off")),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(written, meant):
    found = read_yaml(f"a: {written}", "<text>")["a"]
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not valid YAML: while parsing a flow .* at line 2, column 1"),
        ("--- a\n--- b", "not valid YAML: "),
        ("a: !!python/object:os.system x", "tag .*os.system"),
        ("a: !!int x", "tag .*int"),
        ("a: !!timestamp 2020-01-01", "tag .*timestamp"),
        ("a: !!merge <<", "tag .*merge"),
        ("a: !!float " + ":".join("9" * 50_000), "tag .*float"),
        ("a: 18446744073709551616", "integer out of range at line 1"),
        ("a: " + "9" * 5000, "integer out of range at line 1"),
        ("a: x\0", "not valid YAML: "),
        ("a: " + "x" * 2**20, "the document is too large"),
        ("[" * 1000, "nested deeper than 50 levels at line 1"),
        ("{" * 500, "nested deeper than 50 levels at line 1"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper than 50 levels at line 1"),
        ("", "not a file with the key contract: empty"),
        ("[]", "not a file with the key contract: list"),
    ],
)
def test_invalid_contract_text_is_rejected(text, problem):
    with pytest.raises(ContractError, match=rf"^<text>: {problem}"):
        parse_contract(text)


def alias_bomb(levels, width):
    """Return a document whose last line repeats width**levels values."""
    lines = ["a0: &a0 [" + "x, " * width + "]"]
    lines += [f"a{level}: &a{level} [{f'*a{level - 1}, ' * width}]" for level in range(1, levels)]
    return "\n".join(lines)


def test_aliases_count_as_the_nodes_and_levels_they_repeat_and_never_enclose_themselves():
    with pytest.raises(ContractError, match=r"too many values: over 50000, .* at line 5$"):
        read_yaml(alias_bomb(9, 9), "<text>")
    assert len(read_yaml(alias_bomb(4, 9), "<text>")) == 4
    chain = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 60))
    with pytest.raises(ContractError, match="nested deeper than 50 levels"):
        read_yaml(chain, "<text>")
    with pytest.raises(ContractError, match=r"alias of an unknown or enclosing node: \*x at line "):
        read_yaml("a: &x [*x]", "<text>")


def test_a_large_mapping_is_read_in_linear_time():
    """Counts comparisons of keys, since 20,000 keys took 20 s with quadratic counting."""
    keys = [f"k{index}" for index in range(20_000)]
    assert list(read_yaml("".join(f"{key}: 1\n" for key in keys), "<text>")) == keys


@pytest.mark.parametrize("value", ["[" + "x, " * 40_000 + "]", "x" * 900_000, "k" * 1000 + ": 1"])
def test_large_wrong_value_gives_short_error(value):
    with pytest.raises(ContractError) as caught:
        parse_contract(text_with(f"control_period_s: {value}", "control_period_s: 0.05"))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("path", ["a\0b.yaml", "a\0b", "x" * 5000, "x" * 5000 + ".yaml"])
def test_impossible_path_is_a_contract_error(path):
    with pytest.raises(ContractError):
        load_contract(path)


def test_task_parameters_are_its_other_keys():
    task = parse(document()).task
    assert task.type == "reach"
    assert task.parameters == {"tip": "tcp", "target": "target", "success_radius_m": 0.03}


def test_anchor_repeats_a_profile():
    text = text_with("  fake: &it\n    noise: [0.5]\n  other: *it", "  fake:\n    noise:\n    - 0.1\n    - 0.2")
    assert parse_contract(text).backends == {"fake": {"noise": (0.5,)}, "other": {"noise": (0.5,)}}


def test_the_text_and_the_file_are_kept_and_named_in_errors(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(document()))
    contract = load_contract(file)
    assert (contract.source, contract.text) == (str(file), json.dumps(document()))
    assert load_contract(contract) is contract
    file.write_text(json.dumps(changed("version", 0)))
    with pytest.raises(ContractError) as caught:
        load_contract(file)
    assert str(caught.value) == f"{file}: version: 0 (expected at least 1)"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ContractError, match="cannot read the file: 'utf-8' codec"):
        load_contract(file)


def test_unknown_name_or_path_is_reported_with_known_names():
    with pytest.raises(ContractError, match=r"no such contract: 'arm_reech' .*arm_reach.*did you mean 'arm_reach'\?"):
        load_contract("arm_reech")
    with pytest.raises(ContractError, match=r"no such file: '/nowhere/x.yaml' .*arm_reach"):
        load_contract("/nowhere/x.yaml")


def test_first_ament_prefix_with_the_name_wins(tmp_path, monkeypatch):
    for prefix, name in (("a", "other"), ("b", "overlaid"), ("c", "overlaid")):
        folder = tmp_path / prefix / "share" / "embodied_env" / "config"
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").touch()
    prefixes = os.pathsep.join(str(tmp_path / name) for name in ("a", "", "b", "c"))
    monkeypatch.setenv("AMENT_PREFIX_PATH", prefixes)
    assert find_contract("overlaid") == tmp_path / "b" / "share" / "embodied_env" / "config" / "overlaid.yaml"


@pytest.mark.parametrize("ament", [["/one", "/two"], []])
def test_folders_are_searched_from_the_checkout_to_ament_to_the_python_prefix(ament, monkeypatch):
    monkeypatch.setenv("AMENT_PREFIX_PATH", os.pathsep.join(ament))
    root = Path(embodied_env.__file__).resolve().parents[1]
    checkout = [root / "config"] if (root / "package.xml").is_file() else []  # none for an installed package
    expected = [Path(prefix) / "share" / "embodied_env" / "config" for prefix in (*ament, sys.prefix)]
    assert list(config_folders()) == [*checkout, *expected]


def test_a_name_is_not_looked_up_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "arm_reach.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    assert find_contract("arm_reach").parent != tmp_path
    assert find_contract("arm_reach.yaml").resolve().parent == tmp_path


def test_the_validator_and_yaml_are_imported_only_to_load():
    code = (
        "import sys, embodied_env.contract as c\n"
        "print([m for m in ('pydantic_core', 'yaml') if m in sys.modules])\n"
        "c.load_contract('arm_reach')\n"
        "print([m for m in ('pydantic_core', 'yaml') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "['pydantic_core', 'yaml']"]
