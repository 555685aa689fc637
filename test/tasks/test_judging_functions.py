"""Tasks that are one function in a file or a module, and what becomes of wrong results."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import scripted_tasks
from evidence import assert_replays, assert_sound

from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.envs.registration import make
from embodied_env.errors import ContractError, ResetNeededError, TaskError
from embodied_env.record import read_run
from embodied_env.tasks import describe_task, load_task

ARGUMENTS = 'previous, current, applied, *, sensor: str = "beacon", low=-2.0'
READ = 'height = current.samples[sensor].values["position"][2]'


@pytest.fixture
def write(tmp_path):
    """Write the body of a task function and its contract, and return the contract's path."""

    def write_task(*body, arguments=ARGUMENTS, after="", type_="./lift.py:lift", **parameters):
        lines = "\n".join(f"    {line}" for line in body)
        (tmp_path / "lift.py").write_text(f"import numpy as np\n\ndef lift({arguments}):\n{lines}\n{after}\n")
        document = {**scripted_tasks.document(), "task": {"type": type_, **parameters}}
        (tmp_path / "small.yaml").write_text(json.dumps(document))
        return tmp_path / "small.yaml"

    return write_task


def stepped(contract, steps=1):
    """Return what the last step returned."""
    with make(contract, backend="fake", clock="virtual") as env:
        env.reset(seed=0)
        return [env.step(np.zeros(2)) for _ in range(steps)][-1]


def test_a_function_gives_reward_success_and_terms(write):
    contract = write(READ, "return height, height > low", low=3.0)
    _, reward, terminated, truncated, info = stepped(contract)
    assert type(reward) is float
    assert (terminated, truncated, info["task"]) == (False, False, {})
    assert stepped(write(READ, "return height, height > low"), steps=1)[4]["end_reason"] == "success"
    terms = write("return 1, False, {'b': 2.0, 'a': np.float32(1.0)}", after='lift.terms = ("a", "b")')
    assert list(stepped(terms)[4]["task"].items()) == [("a", 1.0), ("b", 2.0)]


def test_a_function_judges_the_reset_too(write):
    for low, is_solved in ((-2.0, True), (2.0, False)):
        with make(write(READ, "return height, height > low", low=low), backend="fake", clock="virtual") as env:
            _, info = env.reset(seed=0)
        assert (info["reset"]["judged"], info["reset"]["solved"]) == (True, is_solved)


LAST_JOINT = """
from dataclasses import make_dataclass
from embodied_env.tasks import ArrayTask, TaskResult, Verdict

class Own(ArrayTask):
    version, terms, Parameters = 1, (), make_dataclass("Parameters", [], frozen=True)

    def __init__(self, contract, parameters):
        pass

    def evaluate(self, previous, current, applied):
        return TaskResult(reward=-abs(applied.T[1]), verdict=Verdict(success=False), terms={})
"""


def test_an_array_task_judges_the_reset_with_an_action_of_all_joints(write):
    assert stepped(write("pass", after=LAST_JOINT, type_="./lift.py:Own"))[1] == 0.0


def test_a_module_holds_functions_too(write, tmp_path, monkeypatch):
    contract = write("return 1.0, True", type_="function_of_module:lift")
    (tmp_path / "lift.py").rename(tmp_path / "function_of_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert stepped(contract)[4]["is_success"]


def test_the_source_is_the_version(write):
    def description():
        loaded = load_contract(write(*body))
        return describe_task(load_task(loaded, trust=True), loaded)

    body = ("return 1.0, False",)
    first = description()
    assert first == description()
    body = ("return 2.0, False",)
    assert description()["version"] != first["version"]
    assert description()["source_sha256"] != first["source_sha256"]


WRONG = {
    "return 1.0": r"lift\.py:3: lift returned 1\.0 \(expected \(reward, success\)\)",
    "return 1.0, False, {}": r"lift\.py:3: lift returned \(1\.0, False, \{\}\) .*; declare the terms: lift\.terms",
    "return False, 1.0": r"lift\.py:3: lift returned success 1\.0 \(expected True or False\)",
    "return True, False": r"lift\.py:3: reward True \(expected a finite number\)",
    "return float('nan'), False": r"lift\.py:3: reward nan \(expected a finite number\)",
    "return np.float64('-inf'), False": r"lift\.py:3: reward .*inf.* \(expected a finite number\)",
    "return np.zeros(2), False": r"lift\.py:3: reward array\(\[0\., 0\.\]\) \(expected a finite number\)",
    "return current.samples['beacn'].values['position'], False": r"lift\.py:4: KeyError: 'beacn' \(sensors and fields .*\)"
    r"; did you mean 'beacon'\?",
    "return current.samples[sensor].values['positon'], False": r"lift\.py:4: KeyError: .*beacon: position; .*"
    r"; did you mean 'position'\?",
    "return current.sample[sensor], False": r"lift\.py:4: AttributeError: .*; did you mean 'samples'\?",
    "return np.linalg.norm('x'), False": r"lift\.py:4: \w+Error: ",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_result_names_file_and_line(line, write):
    with pytest.raises(TaskError, match=rf"^task \./{WRONG[line]}"):
        stepped(write(line))


def test_an_error_at_the_reset_comes_before_any_motion(write):
    with make(write("return current.samples['beacn'], False"), backend="fake", clock="virtual") as env:
        with pytest.raises(TaskError, match="beacn"):
            env.reset(seed=0)
        with pytest.raises(ResetNeededError):
            env.step(np.zeros(2))


UNUSABLE = {
    "previous, current": "arguments previous, current (expected a class, or a function of",
    "previous, current, applied, low=1.0": "(expected a class, or a function of (previous, current, applied) and keyword-only",
    "previous, current, applied, **others": "and keyword-only parameters)",
    "previous, current, applied, *, low": "parameter 'low' without a type (expected an annotation such as low: float)",
    "previous, current, applied, *, low: Flaot": "name 'Flaot' is not defined",
    "previous, current, applied, *, low: float": "task.low: missing key",
    "previous, current, applied, *, sensor: int = 1": 'task.sensor: "beacon" (expected an integer)',
    "previous, current, applied, *, senser: str": "unknown key 'sensor' (expected one of: senser); did you mean 'senser'?",
}


def test_a_class_that_cannot_be_made_or_found_suggests_the_name_that_may_be_meant(write):
    after = CLASS.format(init="contract.sensors['beacn']", result="1.0")
    contract = load_contract(write("pass", after=after, type_="./lift.py:Falling"))
    with pytest.raises(ContractError, match=r"cannot be made: KeyError: 'beacn' .*; did you mean 'beacon'\?"):
        load_task(contract, trust=True)
    with pytest.raises(ContractError, match=r"has no attribute 'lit'; did you mean 'lift'\?"):
        load_task(replace(contract, task=replace(contract.task, type="./lift.py:lit")), trust=True)


@pytest.mark.parametrize("arguments", UNUSABLE)
def test_a_function_with_wrong_arguments_is_one_error(arguments, write):
    parameters = {"sensor": "beacon"} if "sens" in arguments else {}
    with pytest.raises(ContractError) as caught:
        load_task(load_contract(write("return 1.0, False", arguments=arguments, **parameters)), trust=True)
    assert UNUSABLE[arguments] in str(caught.value)


CLASS = """
class Falling:
    version, terms = 1, ("height", "speed")
    class Parameters: pass
    Parameters = __import__("dataclasses").dataclass(Parameters)
    def __init__(self, contract, parameters): {init}
    def judge(self, previous, current, applied):
        from embodied_env.core.types import TaskResult, Verdict
        return {result}
"""


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("1.0", r"lift\.py:11: judge returned 1\.0 \(expected a TaskResult with a Verdict\)"),
        ("TaskResult(reward=1.0, verdict=True, terms={})", r"expected a TaskResult with a Verdict\)"),
        (
            "TaskResult(reward=1.0, verdict=Verdict(), terms={'height': 1.0})",
            r"terms \{'height': 1\.0\} \(expected the keys \('height', 'speed'\)",
        ),
        (
            "TaskResult(reward=1.0, verdict=Verdict(), terms={'height': 1.0, 'speed': float('inf')})",
            r"speed inf \(expected a finite number\)",
        ),
    ],
)
def test_the_result_of_a_class_is_checked(result, problem, write):
    after = CLASS.format(init="pass", result=result)
    with pytest.raises(TaskError, match=problem):
        stepped(write("pass", after=after, type_="./lift.py:Falling"))


def test_the_step_of_an_error_is_recorded_replayed_and_audited(write, tmp_path):
    contract = write(
        "if current.samples['joints'].seq >= 3:", "    raise ValueError('dropped')", "return float(low), False"
    )
    with make(contract, backend="fake", clock="virtual", record=tmp_path / "runs") as env:
        for _ in range(2):
            env.reset(seed=0)
            env.step(np.full(2, 0.1))
            env.step(np.full(2, 0.1))
            with pytest.raises(TaskError, match=r"lift\.py:5: ValueError: dropped") as caught:
                env.step(np.full(2, 0.1))
            assert isinstance(caught.value.__cause__, ValueError)
            with pytest.raises(ResetNeededError):
                env.step(np.zeros(2))
    last = list(read_run(env.path).transitions())[-1]
    assert (last["truncated"], last["info"]["end_reason"], last["reward"]) == (True, "task_error:ValueError", 0.0)
    assert_sound(env.path)
    assert_replays(env.path, transitions=6, verified=False)
    assert_replays(env.path, transitions=6, trust_task=True)


@pytest.mark.parametrize("body", ['current.samples["beacon"].values["position"][:] = 9', "sys.exit(0)"])
def test_a_task_that_writes_readings_or_exits_ends_the_episode_by_an_error(body, write, tmp_path):
    contract = write("import sys", "if current is not previous:", f"    {body}", "return 0.0, False")
    with make(contract, backend="fake", clock="virtual", record=tmp_path / "runs") as env:
        start, _ = env.reset(seed=0)
        with pytest.raises(
            TaskError, match=r"lift\.py:6: (ValueError: assignment destination is read-only|SystemExit)"
        ):
            env.step(np.zeros(2))
    (row,) = read_run(env.path).transitions()
    assert row["truncated"]
    assert row["info"]["end_reason"].startswith("task_error:")
    np.testing.assert_array_equal(row["observation"]["beacon_position"], start["beacon_position"])


@pytest.mark.parametrize(
    ("after", "arguments", "problem"),
    [
        ("lift.terms = 'height'", ARGUMENTS, "no tuple of different names as terms"),
        ("lift.terms = ('height', 'height')", ARGUMENTS, "no tuple of different names as terms"),
        ("lift.terms = 5", ARGUMENTS, "no tuple of different names as terms"),
        (
            "",
            ARGUMENTS.replace("str", "np.ndarray"),
            "type ndarray cannot be validated (expected parameters of text, numbers",
        ),
        ("raise SystemExit(0)", ARGUMENTS, "cannot be loaded at line 5: SystemExit: 0"),
    ],
)
def test_a_file_that_exits_or_declares_nonsense_is_refused(after, arguments, problem, write):
    with pytest.raises(ContractError, match=re.escape(problem)):
        load_task(load_contract(write("return 0.0, False", after=after, arguments=arguments)), trust=True)


@pytest.mark.needs("evaluation")
def test_evaluate_ends_with_the_traceback_of_the_task(write, tmp_path, capsys):
    contract = write("raise ValueError('dropped')")
    arguments = ["--backend", "fake", "--policy", "hold", "--episodes", "1", "--out", str(tmp_path / "runs")]
    assert main(["evaluate", str(contract), *arguments]) == 1
    error = capsys.readouterr().err
    assert "error: task ./lift.py:4: ValueError: dropped" in error
    assert "raise ValueError('dropped')" in error


@pytest.mark.needs("contract_init")
def test_the_template_of_contract_init_runs_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init = ["contract", "init", "--robot", "arm6", "-o", "my_arm.yaml", "--task", "lift.py"]
    assert main(init) == 0
    assert "my_arm.yaml: written, robot arm6; task ./lift.py:lift" in capsys.readouterr().out
    assert main(["contract", "validate", "my_arm.yaml", "--trust-task"]) == 0
    *_, info = stepped("my_arm.yaml")
    assert info["end_reason"] == ""
    edited = (tmp_path / "lift.py").read_text() + "# mine\n"
    (tmp_path / "lift.py").write_text(edited)
    assert main([*init, "--force"]) == 0
    assert (tmp_path / "lift.py").read_text() == edited


@pytest.mark.needs("contract_init")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--task", "lift.py"], "and --output FILE for its contract"),
        (["--task", "lift", "-o", "x.yaml"], "expected FILE.py"),
    ],
)
def test_a_template_without_a_place_is_refused(arguments, problem, capsys):
    assert main(["contract", "init", "--robot", "arm6", *arguments]) == 2
    assert problem in capsys.readouterr().err
