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
        ("sensors.joints.max_ages_s", "max_age_s"),
        ("sensors.joints.fields.position.unite", "unit"),
        ("sensors.joints.fields.position.no_retrun", "no_return"),
        ("sensors.joints.encodig", "encoding"),
        ("aplied_actions", "applied_actions"),
        ("actuators.arm.comand", "command"),
        ("actuators.arm.joints.a.velocty", "velocity"),
        ("safety.margin", "margins"),
        ("safety.margins.positon", "position"),
        ("safety.nonfinite.stop_aftr", "stop_after"),
        ("safety.watchdog.hold_step", "hold_steps"),
        ("reset_options.target.hi", "high"),
    ],
)
def test_unknown_key_is_rejected_with_a_suggestion(path, guess):
    error = refusal(changed(path, 1))
    assert error.path == path
    assert error.problem.startswith(f"unknown key {path.rpartition('.')[2]!r} (expected one of: ")
    assert error.problem.endswith(f"; did you mean '{guess}'?")


def test_unknown_key_without_similar_key_lists_known_keys():
    error = refusal(changed("episode.zebra", 1))
    assert str(error) == "<text>: episode.zebra: unknown key 'zebra' (expected one of: horizon_steps, kind)"


@pytest.mark.parametrize("key", ["source", "text"])
def test_loader_field_is_not_a_key(key):
    assert str(refusal(changed(key, "x"))) == f"<text>: {key}: unknown key (reserved for the loader)"


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "version",
        "control_period_s",
        "episode",
        "episode.horizon_steps",
        "sensors",
        "sensors.joints.topic",
        "sensors.joints.fields.position.unit",
        "actuators",
        "actuators.arm.joints",
        "actuators.arm.joints.b.position",
        "task",
        "task.type",
    ],
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


@pytest.mark.parametrize("schema", ["embodied_env/2", 1, None])
def test_unknown_schema_is_rejected(schema):
    error = refusal(changed("contract", schema))
    assert str(error) == f"<text>: contract: unknown schema {schema!r} (expected embodied_env/1)"


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
        ("sensors.tcp.fields.position.low", "x", '"x" (expected a number or a list)'),
        ("sensors.tcp.fields.position.shape", 3, "3 (expected a list)"),
        ("sensors.tcp.fields.position.no_return", float("inf"), "Infinity (expected a finite number)"),
        ("sensors.tcp.timeline", "sent", "\"sent\" (expected 'header' or 'receive')"),
        ("sensors.tcp.frame", 1, "1 (expected text)"),
        ("applied_actions", 1.0, "1.0 (expected an integer)"),
    ],
)
def test_wrong_type_reports_value_and_expected_type(path, value, problem):
    error = refusal(changed(path, value))
    assert (error.path, error.problem) == (path, problem)


@pytest.mark.parametrize(
    ("path", "value", "where", "problem"),
    [
        ("actuators.arm.joints.a.position", [float("nan"), 1.0], "[0]", "NaN (expected a finite number)"),
        ("actuators.arm.joints.a.position", [1.0], "[1]", "missing value"),
        ("sensors.tcp.fields.position.low", [0, "x", 0], "[1]", '"x" (expected a number)'),
        ("sensors.joints.fields.position.joints", ["a", 1], "[1]", "1 (expected text)"),
    ],
)
def test_wrong_list_item_is_reported_with_its_index(path, value, where, problem):
    error = refusal(changed(path, value))
    assert (error.path, error.problem) == (path + where, problem)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("path", ["task.success_radius_m", "backends.fake.delay_s"])
def test_non_finite_number_is_rejected_in_free_form_values(path, number):
    error = refusal(changed(path, number))
    assert (error.path, error.problem) == (path, f"{number} (expected a finite number)")


def test_nested_profile_value_is_reported_with_its_path():
    assert refusal(changed("backends.fake.noise", [0.1, {"x": float("nan")}])).path == "backends.fake.noise[1].x"


def test_duplicate_key_is_rejected():
    with pytest.raises(ContractError, match=r"^<text>: version: duplicate key at line 4 \(first at line 3\)$"):
        parse_contract(text_with("version: 1\nversion: 2"))


@pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "[a]"])
def test_non_text_key_is_rejected(key):
    with pytest.raises(ContractError, match=r"the key .* at line 3 is not text: quote it$"):
        parse_contract(text_with(f"{key}: 2"))


@pytest.mark.parametrize("joint", ["y", "n", "yes", "no", "on", "off"])
def test_yaml_1_1_booleans_are_valid_joint_names(joint):
    text = text_with("version: 1").replace("- a\n", f"- {joint}\n").replace(" a:\n", f" {joint}:\n")
    contract = parse_contract(text)
    assert tuple(contract.actuators["arm"].joints) == (joint, "b")
    assert contract.sensors["joints"].fields["position"].joints == (joint, "b")


@pytest.mark.parametrize(
    ("written", "meant"), [("1e-3", 1e-3), ("1E-3", 1e-3), (".5", 0.5), ("5.", 5.0), ("+0.5", 0.5), ("2", 2.0)]
)
def test_decimal_number_notations(written, meant):
    contract = parse_contract(text_with(f"control_period_s: {written}", "control_period_s: 0.05"))
    assert contract.control_period_s == meant


@pytest.mark.parametrize(("written", "meant"), [("010", 10), ("09", 9), ("+3", 3)])
def test_leading_zeros_do_not_make_an_integer_octal(written, meant):
    assert parse_contract(text_with(f"version: {written}")).version == meant


@pytest.mark.parametrize("written", ["1_0", "0x10", "0o7", "1:30", "2020-01-01"])
def test_yaml_1_1_notations_are_text(written):
    with pytest.raises(ContractError, match=rf'version: "{written}" .expected an integer.$'):
        parse_contract(text_with(f"version: {written}"))


@pytest.mark.parametrize("written", ["true", "True", "TRUE"])
def test_boolean_notations(written):
    text = text_with("version: 1").replace("topic: tcp_pose", f"topic: tcp_pose\n    mask: {written}")
    assert parse_contract(text).sensors["tcp"].mask is True


@pytest.mark.parametrize("written", ["null", "~", "Null", ""])
def test_null_notations(written):
    text = text_with("version: 1").replace("velocity: 3.0", f"velocity: 3.0\n        deceleration: {written}")
    assert parse_contract(text).actuators["arm"].joints["a"].deceleration is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not valid YAML: "),
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


def test_recursive_alias_is_rejected():
    with pytest.raises(ContractError, match=r"alias of an unknown or enclosing node: \*x at line "):
        parse_contract(text_with("  success_radius_m: &x [*x]", "  success_radius_m: 0.03"))


def alias_bomb(levels, width):
    """Return a document whose last line repeats width**levels values."""
    lines = ["a0: &a0 [" + "x, " * width + "]"]
    lines += [f"a{level}: &a{level} [{f'*a{level - 1}, ' * width}]" for level in range(1, levels)]
    return "\n".join(lines)


def test_aliases_count_as_the_nodes_they_repeat():
    with pytest.raises(ContractError, match=r"too many values: over 50000, .* at line 5$"):
        read_yaml(alias_bomb(9, 9), "<text>")
    assert len(read_yaml(alias_bomb(4, 9), "<text>")) == 4


def test_aliases_count_as_deep_as_the_nodes_they_repeat():
    chain = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 60))
    with pytest.raises(ContractError, match="nested deeper than 50 levels"):
        read_yaml(chain, "<text>")


def test_a_large_mapping_is_read_in_linear_time():
    """Counts comparisons of keys, since 20,000 keys took 20 s with quadratic counting."""
    keys = [f"k{index}" for index in range(20_000)]
    assert list(read_yaml("".join(f"{key}: 1\n" for key in keys), "<text>")) == keys


@pytest.mark.parametrize("value", ["[" + "x, " * 40_000 + "]", "x" * 900_000, "k" * 1000 + ": 1"])
def test_large_wrong_value_gives_short_error(value):
    with pytest.raises(ContractError) as caught:
        parse_contract(text_with(f"control_period_s: {value}", "control_period_s: 0.05"))
    assert len(str(caught.value)) < 2000


def test_many_wrong_list_items_give_one_error():
    """The work was quadratic in the number of invalid values."""
    error = refusal(changed("sensors.joints.fields.position.joints", [1] * 20_000))
    assert error.path == "sensors.joints.fields.position.joints[0]"


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


def test_the_text_and_the_file_are_kept(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(document()))
    contract = load_contract(file)
    assert (contract.source, contract.text) == (str(file), json.dumps(document()))


def test_an_error_names_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(changed("version", 0)))
    with pytest.raises(ContractError) as caught:
        load_contract(file)
    assert str(caught.value) == f"{file}: version: 0 (expected at least 1)"


def test_loading_a_contract_returns_it_unchanged():
    contract = parse(document())
    assert load_contract(contract) is contract


def test_binary_file_is_rejected(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ContractError, match="cannot read the file: 'utf-8' codec"):
        load_contract(file)


def test_unknown_name_is_reported_with_suggestion_and_known_names():
    with pytest.raises(ContractError, match=r"no such contract: 'arm_reech' .*arm_reach.*did you mean 'arm_reach'\?"):
        load_contract("arm_reech")


def test_missing_path_lists_known_names():
    with pytest.raises(ContractError, match=r"no such file: '/nowhere/x.yaml' .*arm_reach"):
        load_contract("/nowhere/x.yaml")


def folder_with(prefix, name, text=""):
    """Create a contract file under an ament prefix and return the file."""
    folder = prefix / "share" / "embodied_env" / "config"
    folder.mkdir(parents=True)
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return file


def test_first_ament_prefix_with_the_name_wins(tmp_path, monkeypatch):
    folder_with(tmp_path / "a", "other")
    expected = folder_with(tmp_path / "b", "overlaid")
    folder_with(tmp_path / "c", "overlaid")
    prefixes = os.pathsep.join(str(tmp_path / name) for name in ("a", "", "b", "c"))
    monkeypatch.setenv("AMENT_PREFIX_PATH", prefixes)
    assert find_contract("overlaid") == expected


def checkout_folders():
    """Return the folder of the checkout that the package runs from, none for an installed package."""
    root = Path(embodied_env.__file__).resolve().parents[1]
    return [root / "config"] if (root / "package.xml").is_file() else []


def test_folders_are_searched_from_the_checkout_to_ament_to_the_python_prefix(monkeypatch):
    monkeypatch.setenv("AMENT_PREFIX_PATH", os.pathsep.join(["/one", "/two"]))
    prefixes = [Path("/one"), Path("/two"), Path(sys.prefix)]
    expected = [*checkout_folders(), *(prefix / "share" / "embodied_env" / "config" for prefix in prefixes)]
    assert list(config_folders()) == expected


def test_checkout_and_prefix_are_searched_without_ament(monkeypatch):
    monkeypatch.delenv("AMENT_PREFIX_PATH", raising=False)
    expected = [*checkout_folders(), Path(sys.prefix) / "share" / "embodied_env" / "config"]
    assert list(config_folders()) == expected


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
