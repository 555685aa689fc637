"""Code and files named by a run or contract are neither imported nor opened without trust."""

import contextlib
import copy
import json
import os
import shutil
import sys
from dataclasses import replace
from pkgutil import resolve_name

import numpy as np
import pytest
import scripted_tasks
from distributions import install
from evidence import assert_sound
from extension_marks import needing
from strategies import changed, document, parse

import embodied_env
from embodied_env.cli import WRONG_USAGE
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import load_contract, save_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.option_checks import resolve_contract
from embodied_env.envs.registration import make
from embodied_env.errors import ContractError, UsageError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.tasks import load_task
from embodied_env.timing.clock import ManualClock

SPY = """
import pathlib
from embodied_env.tasks.reach import Reach

with pathlib.Path({marker!r}).open("a") as file:
    file.write("imported ")

class Spy(Reach):
    version = {version}
"""
FORMS = {"module": "trust_spy:Spy", "file": "./tasks/spy.py:Spy"}


SHORTLY = ["--backend", "fake", "--policy", "hold", "--episodes", "1"]


class World:
    """A contract whose task leaves a marker when executed, and two runs of it, without a marker."""

    def __init__(self, folder, form):
        self.folder, self.marker = folder, folder / "marker"
        self.module, self.file = folder / "modules" / "trust_spy.py", folder / "tasks" / "spy.py"
        for file in (self.module, self.file):
            file.parent.mkdir()
            file.write_text(SPY.format(marker=str(self.marker), version=3))
        self.contract = folder / "spied.yaml"
        self.contract.write_text(json.dumps(changed("task.type", FORMS[form])))
        self.task = FORMS[form]
        self.runs = [self._recorded(seed) for seed in (1, 2)]
        assert self.executed()
        self.forget()

    def _recorded(self, seed):
        env = RecordTransitions(EmbodiedEnv(self.contract, backend="fake", clock="virtual"), self.folder / "runs")
        with env:
            env.reset(seed=seed)
            for _ in range(3):
                env.step(np.full(2, 0.1))
        return env.path

    def executed(self):
        return self.marker.exists()

    def forget(self):
        """Make the next import of the task execute it."""
        self.marker.unlink(missing_ok=True)
        for name in [name for name in sys.modules if name == "trust_spy" or name.startswith("embodied_env_task_")]:
            del sys.modules[name]


@pytest.fixture(scope="module", params=FORMS)
def recorded(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("recorded")
        patch.setattr(sys, "path", [str(folder / "modules"), *sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        yield World(folder, request.param)


of_a_module = pytest.mark.parametrize("recorded", ["module"], indirect=True)


@pytest.fixture
def world(recorded, tmp_path):
    made = copy.copy(recorded)
    made.folder, made.runs = tmp_path, [shutil.copytree(run, tmp_path / run.name) for run in recorded.runs]
    made.forget()
    yield made
    made.forget()


def replayed_environment(world):
    with make(backend="replay", run=world.runs[0]) as env:
        env.reset(seed=1)
        env.step(np.full(2, 0.1))
        saved = env.spec.kwargs["contract"]
    assert resolve_contract(saved).trusted is False


REPLAY_RUN = "embodied_env.extensions.replay.run_replay:replay_run"
REPLAY_POLICY = "embodied_env.extensions.replay.run_replay:replay_policy"
COMPARE_RUNS = "embodied_env.extensions.comparison.run_comparison:compare_runs"
WRITE_REPORT = "embodied_env.extensions.report.run_report:write_report"
OF_FUNCTIONS = {
    "audit_run": "audit",
    "replay_run": "replay",
    "replay_policy": "replay",
    "compare_runs": "comparison",
    "write_report": "report",
    "make, replay": "replay",
}


def uses(table):
    """Return the names of the table, marked by the extensions that they need."""
    of_functions = {use: [pytest.mark.needs(name)] for use, name in OF_FUNCTIONS.items()}
    return [pytest.param(use, marks=of_functions.get(use) or needing(*use.split())) for use in table]


READERS = {
    "audit": lambda world: main(["audit", str(world.runs[0])]),
    "replay": lambda world: main(["replay", str(world.runs[0])]),
    "replay --policy": lambda world: main(["replay", str(world.runs[0]), "--policy", "hold"]),
    "replay --policy scripted": lambda world: main(["replay", str(world.runs[0]), "--policy", "scripted"]),
    "report": lambda world: main(["report", str(world.runs[0])]),
    "compare": lambda world: main(["compare", *map(str, world.runs), "--output", str(world.folder / "page.html")]),
    "export": lambda world: main(["export", str(world.runs[0]), "--format", "jsonl", "--out", str(world.folder / "x")]),
    "profile": lambda world: main(["profile", str(world.runs[0]), "--out", str(world.folder / "profile.json")]),
    "contract validate": lambda world: main(["contract", "validate", str(world.contract)]),
    "contract show": lambda world: main(["contract", "show", str(world.contract)]),
    "contract fingerprint": lambda world: main(["contract", "fingerprint", str(world.contract)]),
    "contract diff": lambda world: main(["contract", "diff", str(world.contract), "arm_reach"]),
    "doctor": lambda world: main(["doctor", str(world.contract), "--backend", "fake"]),
    "audit_run": lambda world: embodied_env.audit_run(world.runs[0]),
    "replay_run": lambda world: resolve_name(REPLAY_RUN)(world.runs[0]),
    "replay_policy": lambda world: resolve_name(REPLAY_POLICY)(world.runs[0], lambda _: np.zeros(2)),
    "read_run": lambda world: list(read_run(world.runs[0]).rows()),
    "compare_runs": lambda world: resolve_name(COMPARE_RUNS)(*world.runs),
    "write_report": lambda world: resolve_name(WRITE_REPORT)(world.runs[0]),
    "load_contract": lambda world: load_contract(world.contract).fingerprint,
    "make, replay": replayed_environment,
}
"""Verb or function -> a use of it that must not execute the task."""


@pytest.mark.parametrize("reader", uses(READERS))
def test_reading_a_run_does_not_execute_its_task(reader, world):
    status = READERS[reader](world)
    assert not world.executed()
    assert status != WRONG_USAGE or reader == "replay --policy scripted"  # its policy is that of the task


TRUSTED = {
    "replay --trust-task": lambda world: main(["replay", str(world.runs[0]), "--trust-task"]),
    "replay --contract": lambda world: main(["replay", str(world.runs[0]), "--contract", str(world.contract)]),
    "replay --task": lambda world: main(["replay", str(world.runs[0]), "--task", str(world.file)]),
    "replay --task with a class": lambda world: main(["replay", str(world.runs[0]), "--task", f"{world.file}:Spy"]),
    "contract validate --trust-task": lambda world: main(["contract", "validate", str(world.contract), "--trust-task"]),
    "contract validate --task": lambda w: main(["contract", "validate", str(w.contract), "--task", str(w.file)]),
    "doctor --trust-task": lambda world: main(["doctor", str(world.contract), "--backend", "fake", "--trust-task"]),
    "make": lambda world: make(world.contract, backend="fake").close(),
    "evaluate": lambda world: main(
        ["evaluate", str(world.contract), *SHORTLY, "--out", str(world.folder / "evaluated")]
    ),
}


@pytest.mark.parametrize("use", uses(TRUSTED))
def test_with_trust_the_task_is_executed(use, world):
    assert TRUSTED[use](world) in (None, 0, 1)  # 1: the audit of this host
    assert world.executed()


@pytest.mark.needs("replay")
@pytest.mark.parametrize("arguments", [["--trust-task"], ["--task", "FILE"], ["--contract", "CONTRACT"]])
def test_a_trusted_task_is_verified(arguments, world, capsys):
    places = {"FILE": str(world.file), "CONTRACT": str(world.contract)}
    assert main(["replay", str(world.runs[0]), *(places.get(word, word) for word in arguments)]) == 0
    assert capsys.readouterr().out == f"{world.runs[0]}: 3 transitions, all equal\n"


@pytest.mark.needs("replay")
@of_a_module
def test_an_untrusted_replay_reports_that_the_task_is_not_verified(world, capsys):
    assert main(["replay", str(world.runs[0])]) == 1
    out = capsys.readouterr().out
    assert out.startswith("task not verified")
    assert "3 transitions, all equal" in out
    assert main(["replay", str(world.runs[0]), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["task_verified"], found["sound"]) == (True, False, False)


@pytest.mark.needs("replay")
def test_the_task_of_a_shipped_contract_is_verified_without_trust(tmp_path):
    from embodied_env.extensions.replay.run_replay import replay_run

    with make("arm_reach", backend="fake", record=tmp_path) as env:
        env.reset(seed=1)
        env.step(np.zeros(6))
    replay = replay_run(env.path)
    assert (replay.sound, replay.task_verified, replay.task_changed) == (True, True, False)


@pytest.mark.needs("replay")
@of_a_module
def test_a_task_changed_since_the_run_is_named(world):
    from embodied_env.extensions.replay.run_replay import replay_run

    newer = world.folder / "newer.py"
    newer.write_text(SPY.format(marker=str(world.marker), version=4))
    replay = replay_run(world.runs[0], task=str(newer))
    assert (replay.task_verified, replay.task_changed) == (True, True)


def test_the_manifest_describes_the_task_and_suffices_for_the_audit(world):
    task = read_run(world.runs[0]).manifest["task"]
    assert (task["type"], task["version"]) == (world.task, 3)
    assert task["terms"] == list(next(read_run(world.runs[0]).transitions())["info"]["task"])
    assert len(bytes.fromhex(task["source_sha256"])) == 32
    assert_sound(world.runs[0])


@pytest.mark.needs("comparison", "report")
@of_a_module
def test_runs_of_different_task_sources_are_not_comparable(world, capsys):
    file = world.runs[1] / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "task": {**manifest["task"], "source_sha256": "0" * 64}}))
    assert main(["compare", *map(str, world.runs)]) == 1
    assert capsys.readouterr().out.startswith("task.source_sha256: A has ")
    assert not world.executed()


@pytest.fixture
def decoy(tmp_path):
    """Return a folder with other files of the same names."""
    folder = tmp_path / "decoy"
    (folder / "tasks").mkdir(parents=True)
    for name in ("spy.py", "tasks/spy.py"):
        (folder / name).write_text("raise SystemExit('the wrong file')")
    return folder


@of_a_module
def test_a_file_is_loaded_by_its_exact_path(world, monkeypatch, decoy):
    monkeypatch.syspath_prepend(decoy)
    monkeypatch.chdir(decoy)
    path = replace(load_contract(world.contract), task=replace(load_contract(world.contract).task, type=FORMS["file"]))
    assert type(load_task(path, trust=True)).version == 3
    assert "spy" not in sys.modules


@pytest.mark.needs("evaluation")
@pytest.mark.parametrize("recorded", ["file"], indirect=True)
def test_a_worker_loads_the_task_file_by_its_exact_path(world, monkeypatch, decoy, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(decoy), str(world.module.parent)]), prepend=os.pathsep)
    arguments = [*SHORTLY, "--out", str(tmp_path / "out")]
    assert main(["evaluate", str(world.contract), *arguments, "--engine", "local", "--workers", "1"]) == 0
    (run,) = (tmp_path / "out").glob("*/*/manifest.json")
    assert json.loads(run.read_text())["task"]["version"] == 3


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        ("nowhere", "unknown name 'nowhere' (expected one of: navigate, "),
        ("nowhere.at_all:Task", "No module named 'nowhere' (expected an installed module); name a file by its path "),
        ("json:Task", "has no attribute 'Task'"),
        ("json:dumps", "expected a class"),
        ("builtins:dict", "is not a task"),
        ("./missing.py:Task", "No such file"),
        ("/dev/zero.py:Task", "No such file"),
        ("./raises.py:Task", "cannot be loaded at line 1: ZeroDivisionError"),
        ("./folder.py:Task", "not a regular file"),
        ("./broken.py:Task", "SyntaxError"),
    ],
)
def test_a_trusted_task_that_cannot_be_loaded_is_one_error(type_, problem, tmp_path):
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "broken.py").write_text("class")
    (tmp_path / "folder.py").mkdir()
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(changed("task.type", type_)))
    with pytest.raises(ContractError) as caught:
        load_task(load_contract(file), trust=True)
    assert caught.value.path == "task.type"
    assert problem in caught.value.problem


@pytest.mark.parametrize("file", ["fifo", "fifo.py", "fifo.py:Reach", "nowhere.py:Reach", "nul\0.py", "", ":", ".py:X"])
def test_an_invalid_task_file_is_one_error(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fifo", "fifo.py"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ContractError, match=r"task\.type: .* cannot be loaded: "):
        load_task(load_contract("arm_reach"), file=file)


@pytest.mark.parametrize(
    "type_", ["embodied_env.tasks..reach:Reach", "embodied_env.tasks.task:Task", "embodied_env.x:Y"]
)
def test_an_unshipped_task_of_the_package_is_rejected_without_import(type_):
    with pytest.raises(ContractError, match=r"task\.type"):
        embodied_env.contract.parse_contract(json.dumps(changed("task.type", type_)))


def test_a_task_of_an_installed_package_is_found_by_name_and_imported_with_trust_only(tmp_path, monkeypatch):
    spy = SPY.format(marker=str(tmp_path / "marker"), version=3)
    install(monkeypatch, tmp_path, {"tasks": {"spied": "trust_spy:Spy"}}, trust_spy=spy)
    contract = parse(changed("task.type", "spied"))
    for untrusted in (contract, parse(changed("task.type", "trust_spy:Spy"))):
        with pytest.raises(
            ContractError, match=rf"task\.type: task not loaded: '{untrusted.task.type}' is not trusted"
        ):
            load_task(untrusted)
    assert not (tmp_path / "marker").exists()
    assert load_task(contract, trust=True).version == 3


@pytest.mark.needs("replay")
@of_a_module
def test_the_contract_of_a_run_is_accepted_only_for_its_replay(world):
    from embodied_env.record.manifest import contract_of_manifest

    contract = contract_of_manifest(read_run(world.runs[0]).manifest)
    for backend in ("fake", "mujoco", "mujoco_ros", "real"):
        for given in (contract, save_contract(contract)):
            with pytest.raises(UsageError, match="contract of a run"):
                EmbodiedEnv(given, backend=backend)
    assert not world.executed()


@pytest.mark.needs("audit", "replay", "report")
@of_a_module
def test_a_policy_named_by_a_manifest_is_not_imported(world):
    from embodied_env.extensions.replay.run_replay import replay_run

    file = world.runs[0] / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "policy": FORMS["module"]}))
    with contextlib.suppress(ContractError):
        replay_run(world.runs[0])
    main(["audit", str(world.runs[0])])
    main(["report", str(world.runs[0])])
    assert not world.executed()


@pytest.mark.needs("replay")
@of_a_module
def test_a_filter_named_by_a_run_must_be_installed_under_that_name(world):
    from embodied_env.extensions.replay.run_replay import replay_run

    file = world.runs[0] / "manifest.json"
    manifest = json.loads(file.read_text())
    text = json.dumps({**document(), "safety": {"gates": {"trust_spy:Spy": {}}}})
    file.write_text(json.dumps({**manifest, "contract": {**manifest["contract"], "text": text}}))
    with pytest.raises(ContractError, match=r"safety\.gates"):
        replay_run(world.runs[0])
    assert not world.executed()


@pytest.mark.needs("replay")
@pytest.mark.parametrize(
    "task",
    [
        {"type": "scripted_tasks:Scripted", "success_at": 2, "failure_at": 2, "out_of_bounds_at": 2},
        {"type": "scripted_tasks:Running"},
    ],
)
def test_every_verdict_is_replayed_as_recorded_without_trust(task, tmp_path):
    from embodied_env.extensions.replay.run_replay import replay_run

    env = RecordTransitions(
        EmbodiedEnv(scripted_tasks.contract(task=task), backend="fake", clock=ManualClock()), tmp_path
    )
    with env:
        for seed in (1, None):
            env.reset(seed=seed)
            ended = False
            while not ended:
                *_, terminated, truncated, _ = env.step(np.full(2, 0.1))
                ended = terminated or truncated
    replay = replay_run(env.path)
    assert (replay.difference, replay.task_verified, replay.sound) == (None, False, False)
    assert replay.transitions == sum(1 for _ in read_run(env.path).transitions())


@pytest.mark.needs("replay")
@of_a_module
def test_a_changed_command_is_detected_without_trust(world, tmp_path):
    from embodied_env.extensions.replay.run_replay import replay_run

    path = shutil.copytree(world.runs[0], tmp_path / "changed")
    stricter = replace(load_contract(world.contract), source=str(world.contract))
    arm = stricter.actuators["arm"]
    joints = {name: replace(limits, velocity=0.01) for name, limits in arm.joints.items()}
    text = embodied_env.contract.contract_loader.dump_contract(
        replace(stricter, actuators={"arm": replace(arm, joints=joints)})
    )
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "contract": {**manifest["contract"], "text": text}}))
    assert replay_run(path).difference is not None
    assert not world.executed()
