"""Wrong use of public functions and the command line is one clear error, and never a traceback."""

import math
from functools import partial
from pathlib import Path

import pytest
from extension_marks import needing
from shipped_contracts import changed_text

import embodied_env
from embodied_env.cli import WRONG_USAGE
from embodied_env.cli.main import main
from embodied_env.contract import parse_contract
from embodied_env.errors import ContractError, UsageError
from embodied_env.timing.clock import VirtualClock

ARM = embodied_env.load_contract("arm_reach")
NO_PATH: list = ["", "\0", "a\0b", "\ud800", 5, b"runs", [], object(), True]
NO_CLOCK = ["", "\0", "noon", 5, math.nan, object(), [], VirtualClock]
NO_FLAG = ["", "no", 0, 1, None, [], math.nan]
NO_COUNT = [0, -1, 1.5, True, "5", math.nan, math.inf, []]
NO_SECONDS = [0, -1.0, math.nan, math.inf, 1e308, 10**400, "1", True, []]
NO_BACKEND = ["", "\0", ":", "nope", 5, [], {}, None]

OF_MAKE = {
    "backend": NO_BACKEND,
    "clock": NO_CLOCK,
    "record": NO_PATH,
    "record_messages": NO_FLAG,
    "compression": ["", "gzip", 5, [], True],
    "evaluator_info": NO_FLAG,
    "spawn": NO_FLAG,
    "max_episode_steps": NO_COUNT,
    "switch_interval_s": NO_SECONDS,
    "fifo_priority": [0, -1, 100, 1.5, "1", math.nan, []],
    "step_timeout_s": NO_SECONDS,
    "observers": [5, "see", [5], object(), None],
    "faults": [5, "drop", [5], None],
    "render_mode": ["", "\0", 5, []],
    "pacing": ["", "\0", 5, []],
    "delay_profile": ["", "\0", "nope.json", 5, [], object()],
    "nope": [5],
}
OF_ROS = {
    "namespace": ["", "\0", "robot", "/1", 5, b"/x", []],
    "domain_id": ["", -1, 233, 1.5, math.nan, "x", [], 10**400],
    "step_timeout_s": NO_SECONDS,
    "reset_timeout_s": NO_SECONDS,
}
OF_VECTOR = {
    "num_envs": NO_COUNT,
    "threads": [-1, 1.5, "1", math.nan],
    "autoreset_mode": ["", "\0", 5, []],
    "per_slot": [5, "ab", [5], [{}, {}], object()],
    "copy": NO_FLAG,
    "record": NO_PATH[:2],
    "clock": NO_CLOCK[2:4],
    "backend": NO_BACKEND[3:6],
}
OF_PARALLEL = {name: OF_MAKE[name][:3] for name in ("backend", "clock", "record", "evaluator_info")}
CONTRACTS = ["", "\0", "a\0b", ":", "/", "nope", "\ud800", 5, b"arm_reach", [], {}, None, object()]


def refuse_each(table, call, **others):
    """Check that `call` names each argument of the table for each of its values, and writes no file."""
    for name, values in table.items():
        for value in values:
            with pytest.raises(UsageError, match=name):
                call(**{**others, name: value})
    assert list(Path().iterdir()) == []


def test_invalid_argument_of_make_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_each(OF_MAKE, partial(embodied_env.make, ARM), backend="fake")


def test_invalid_argument_of_ros_backend_is_named(tmp_path, monkeypatch):
    pytest.importorskip("rclpy")
    monkeypatch.chdir(tmp_path)
    refuse_each(OF_ROS, partial(embodied_env.make, ARM), backend="mujoco_ros")


@pytest.mark.needs("vector")
def test_invalid_argument_of_make_vec_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_each(OF_VECTOR, partial(embodied_env.make_vec, ARM), backend="fake", num_envs=1)


@pytest.mark.needs("teams")
def test_invalid_argument_of_parallel_env_is_named(tmp_path, monkeypatch):
    pytest.importorskip("pettingzoo")
    monkeypatch.chdir(tmp_path)
    refuse_each(OF_PARALLEL, partial(embodied_env.parallel_env, "two_carts"), backend="fake")


@pytest.mark.parametrize("call", [embodied_env.make, embodied_env.load_contract])
def test_invalid_contract_argument_is_one_error(call):
    for contract in CONTRACTS:
        with pytest.raises((ContractError, UsageError)):
            call(contract)


@pytest.mark.needs("replay")
def test_invalid_run_path_is_a_usage_error():
    for run in NO_PATH:
        with pytest.raises(UsageError, match="expected a path"):
            embodied_env.make(backend="replay", run=run)


JOINT = "actuators.arm.joints.j1"
NUMBERS: dict = {
    "control_period_s": [5e-324, 1e-310, 1e-12, 1e18, 1e308],
    f"{JOINT}.velocity": [5e-324, 1e-310, 1e308],
    f"{JOINT}.acceleration": [5e-324, 1e308],
    f"{JOINT}.position": [[0.0, 5e-324], [-1e308, 1e308]],
    "safety.margins.velocity": [5e-324],
    "sensors.joints.rate_hz": [5e-324, 1e308],
    "sensors.joints.max_age_s": [5e-324, 1e308],
    "backends.mujoco.sources.joints.delay_s": [1e308],
}


def test_extreme_number_is_rejected_with_its_path():
    for path, values in NUMBERS.items():
        for value in values:
            with pytest.raises(ContractError) as caught:
                parse_contract(changed_text(ARM, {path: value}))
            assert caught.value.path.removesuffix("[0]") == path, value


EVALUATE = ("evaluate", "arm_reach", "--backend", "fake", "--episodes", "1", "--policy", "hold")
COMMANDS = [
    ("",),
    ("nope",),
    (":",),
    ("evaluate",),
    ("evaluate", ""),
    ("evaluate", "\0"),
    ("evaluate", ":"),
    ("evaluate", "/"),
    *(
        (*EVALUATE, "--policy", policy)
        for policy in ("", ":", "a:", ":a", "\0:a", ".:a", "..a:b", "os:", "os:nope", "os:sep")
    ),
    (*EVALUATE, "--policy", "checkpoint:folder"),
    (*EVALUATE, "--policy", "a_broken_policy:act"),
    (*EVALUATE, "--policy", "an_exploding_policy:act"),
    *((*EVALUATE, "--episodes", count) for count in ("", "0", "-1", "1.5", "nan", "1e9", "9" * 5000)),
    *((*EVALUATE, "--seed", seed) for seed in ("", "-1", "nan")),
    *((*EVALUATE, "--out", out) for out in ("", "\0", "a\0b")),
    *((*EVALUATE, "--backend", backend) for backend in ("", "\0", ":", "nope", "replay")),
    *((*EVALUATE, "--clock", clock) for clock in ("", "\0", "noon")),
    *((*EVALUATE, "--pacing", pacing) for pacing in ("", "\0", "fast")),
    *((*EVALUATE, "--fifo-priority", priority) for priority in ("", "0", "100", "nan")),
    *((*EVALUATE, "--switch-interval", interval) for interval in ("", "0", "-1", "nan", "inf", "1e308")),
    *((*EVALUATE, "--delay-profile", file) for file in ("", "\0", "nope.json", "/")),
    *((*EVALUATE, "--compression", compression) for compression in ("", "\0", "gzip")),
    *((*EVALUATE, "--namespace", namespace) for namespace in ("", "\0", "robot")),
    *((*EVALUATE, "--engine", engine) for engine in ("", "\0", "cloud")),
    *((*EVALUATE, "--engine", "local", "--workers", workers) for workers in ("", "0", "-1", "1.5", "102", "9" * 50)),
    (*EVALUATE, "--engine", "local", "--backend", "nope"),
    *((verb, "") for verb in ("audit", "report", "replay", "profile", "sim", "relay", "doctor", "calibrate")),
    *((verb, "\0") for verb in ("audit", "report", "replay", "profile", "sim", "relay", "doctor", "calibrate")),
    ("compare", "", "\0"),
    *(("identify", run, "--contract", "arm_reach") for run in ("", "\0", "nope")),
    ("identify", "/"),
    *(("identify", "/", "--contract", name) for name in ("", "nope", "\0")),
    *(("identify", "/", "--contract", "arm_reach", "--parameters", each) for each in ("", "gain=1", "mass", "\0")),
    *(("identify", "/", "--contract", "arm_reach", "--segment", seconds) for seconds in ("", "0", "-1", "nan", "inf")),
    *(("identify", "/", "--contract", "arm_reach", option, "\0") for option in ("--out", "--report", "--backend")),
    ("report", "/", "-o", ""),
    ("compare", "/", "/", "-o", ""),
    *(("compare", "/", "/", "--force", "-o", path) for path in ("/", "nowhere/page.html")),
    ("identify", "/", "--contract", "arm_reach", "--force", "--out", "/"),
    *(("contract", "init", "--robot", "ur5e", "--force", "-o", path) for path in ("/", "a_broken_policy.py/x.yaml")),
    ("contract", "picture", "arm_reach", "--force", "--out", "a_broken_policy.py"),
    ("export", "", "out"),
    ("export", "\0", "\0"),
    *(("calibrate", "arm_reach", "--backend", "fake", "--amplitude", share) for share in ("0", "nan", "1e308", "")),
    *(("calibrate", "arm_reach", "--backend", "fake", "--repeats", count) for count in ("0", "1", "nan")),
    ("calibrate", "arm_reach", "--backend", "fake", "--out", "\0"),
    ("calibrate", "arm_reach", "--backend", "nope"),
    ("calibrate", "arm_reach", "--backend", "fake", "--joints", ""),
    *(("doctor", "arm_reach", "--backend", backend) for backend in ("", "\0", "nope")),
    *(("doctor", "arm_reach", "--backend", "fake", "--timeout", seconds) for seconds in ("0", "-1", "nan", "inf", "")),
    *(("contract", action, name) for action in ("validate", "show", "fingerprint") for name in ("", "\0", ":", "/")),
    ("contract",),
    ("contract", "nope"),
    ("contract", "diff", "arm_reach"),
    ("contract", "diff", "arm_reach", ""),
    ("contract", "fingerprint", "arm_reach", "--backend", ""),
    ("contract", "picture", ""),
    ("contract", "picture", "arm_reach", "--seed", "-1"),
    ("contract", "picture", "arm_reach", "--out", "\0"),
    ("launch",),
    ("launch", "nope"),
    ("launch", "\0"),
    ("sim", "arm_reach", "--namespace", "\0"),
    ("sim", "arm_reach", "--profile", "nope"),
    ("sim", "arm_reach", "--emulator-settings", "{"),
    ("sim", "arm_reach", "--delay-profile", "\0"),
    ("relay", "arm_reach", "--namespace", "\0"),
    ("relay", "arm_reach", "--backend", "nope"),
]


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    (tmp_path / "a_broken_policy.py").write_text("not python\n")
    (tmp_path / "an_exploding_policy.py").write_text("raise ZeroDivisionError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def lines_by_verb():
    """Return the command lines of each verb, and apart those of another extension than the one of their verb."""
    found = {}
    for words in COMMANDS:
        needed = tuple(name for mark in needing(*words) for name in mark.args)
        found.setdefault((words[0], *needed), []).append(words)
    return [pytest.param(lines, id="-".join(key), marks=needing(*lines[0])) for key, lines in found.items()]


@pytest.mark.parametrize("lines", lines_by_verb())
def test_wrong_command_line_prints_one_line_and_exits_2(empty_folder, capsys, lines):
    for words in lines:
        assert main(words) == WRONG_USAGE, words
        output = capsys.readouterr()
        assert output.out == "", words
        assert [line.startswith("embodied-env: error: ") for line in output.err.splitlines()] == [True], words
    assert {path.name for path in empty_folder.iterdir()} <= {
        "a_broken_policy.py",
        "an_exploding_policy.py",
        "__pycache__",
    }


OVERWRITES = [
    (("profile", "run", "-o", "kept"), "kept"),
    (("profile", "run"), "latency_profile.json"),
    (("calibrate", "arm_reach", "--backend", "fake", "--out", "kept"), "kept"),
    (("identify", "run", "--contract", "arm_reach", "--out", "kept"), "kept"),
    (("identify", "run", "--contract", "arm_reach", "--report", "kept"), "kept"),
    (("identify", "run", "--contract", "arm_reach"), "arm_reach.identified.yaml"),
    (("report", "run", "-o", "kept"), "kept"),
    (("compare", "run", "run", "-o", "kept"), "kept"),
    (("compare", "run", "run"), "compare.html"),
    (("view", "run", "--save", "kept.rrd"), "kept.rrd"),
    (("contract", "picture", "arm_reach"), "arm_reach.png"),
    (("contract", "init", "--robot", "ur5e", "-o", "kept"), "kept"),
    (("policy", "init", "--contract", "arm_reach", "--from-lerobot", "run", "-o", "kept"), "kept"),
]


@pytest.mark.parametrize(
    ("words", "file"),
    [pytest.param(words, file, id=" ".join(words), marks=needing(*words)) for words, file in OVERWRITES],
)
def test_a_file_that_exists_is_not_overwritten(empty_folder, capsys, words, file):
    (empty_folder / "run").mkdir()
    (empty_folder / file).write_text("mine")
    assert main(words) == WRONG_USAGE
    assert f"{file} exists (expected a new file); choose another one" in capsys.readouterr().err
    assert (empty_folder / file).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "file"),
    [
        pytest.param(("contract", "picture", "arm_reach", "arm_reach"), "arm_reach.png", id="picture"),
        pytest.param(
            ("identify", "run", "--contract", "arm_reach", "--out", "a", "--report", "./a"),
            "a",
            id="identify",
            marks=needing("identify"),
        ),
    ],
)
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["new", "force"])
def test_one_file_for_two_outputs_is_refused(empty_folder, capsys, words, file, force):
    (empty_folder / "run").mkdir()
    assert main([*words, *force]) == WRONG_USAGE
    assert capsys.readouterr().err == (
        f"embodied-env: error: {file} would be written twice (expected a different file for each output)\n"
    )
    assert not (empty_folder / file).exists()


@pytest.mark.needs("contract_init")
def test_overwriting_what_is_no_regular_file_is_refused(empty_folder, capsys):
    (empty_folder / "link").symlink_to("nowhere")
    assert main(["contract", "init", "--robot", "ur5e", "-o", "link", "--force"]) == WRONG_USAGE
    assert "link is not a regular file" in capsys.readouterr().err
