import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scripted_tasks
from distributions import install
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.backends import backend as base
from embodied_env.cli import UNSOUND
from embodied_env.cli.main import VERBS, Verb, main
from embodied_env.contract import JointLimits, load_contract
from embodied_env.core.plugin_loading import find_extension, foreign_code, load_extension
from embodied_env.core.policy import as_policy
from embodied_env.core.types import Snapshot
from embodied_env.errors import (
    BackendLostError,
    BackendNotReadyError,
    ClosedError,
    ContractError,
    MissingDependencyError,
    ResetNeededError,
    UsageError,
)
from embodied_env.processes.signals import Terminated
from embodied_env.safety.command_filters import make_command_filters
from embodied_env.safety.gate import SafetyGate
from embodied_env.tasks.judging import judge_reset, judge_step
from embodied_env.tasks.loading import load_task


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "extension_with_need.py").write_text("import package_that_is_not_there\n")


def test_object_of_an_extension_is_found():
    assert find_extension("embodied_env.core.plugin_loading:find_extension") is find_extension


@pytest.mark.parametrize("module", ["embodied_env.no_such", "embodied_env.no_such.module", "embodied_env.core.no_such"])
def test_removed_extension_is_named(module):
    assert find_extension(f"{module}:thing") is None
    with pytest.raises(MissingDependencyError, match=f"^a view needs {module}, which is not installed; install"):
        load_extension(f"{module}:thing", needed_for="a view")


def test_missing_package_of_an_extension_is_no_removed_extension(packages):
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        find_extension("extension_with_need:thing")


def test_verb_of_a_removed_extension_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "gone", Verb("extensions.gone.gone_cli", "do nothing"))
    assert main(["gone", "--help"]) == UNSOUND
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "embodied-env: error: the verb 'gone' needs embodied_env.extensions.gone.gone_cli, which is not installed; "
    )


# ---------------------------------------------------------------------------------------------------------- foreign code


MODULE = """
import sys

class Mute(Exception):
    def __str__(self):
        raise ValueError

def raising(*_, **__):
    raise Mute

def exiting(*_, **__):
    sys.exit(0)

def nothing(*_, **__):
    return None

def without_arguments():
    return None

from embodied_env.backends.fake_backend import FakeBackend, realtime_fake

def backend(contract, *, clock, call, error, pacing="lockstep"):
    made = (FakeBackend if pacing == "lockstep" else realtime_fake)(contract, clock=clock)
    def fail(*_, **__):
        raise error
    made.__class__ = type("Broken", (type(made),), {call: fail})
    return made

class Gate:
    def __init__(self, contract, *, fails):
        self.fails = fails
    def reset(self):
        self.fails != "reset" or sys.exit(0)
    def filter(self, proposal):
        self.fails != "filter" or sys.exit(0)
"""
BROKEN = ["no_such_module:make", "a_party_exits:make", "not_python:make"]
BROKEN += [f"a_party:{name}" for name in ("raising", "exiting", "nothing", "without_arguments", "absent", "__name__")]


@pytest.fixture
def install_party(tmp_path, monkeypatch):
    """Return a function that installs a package with the entry point `party` in every group."""
    modules = {"a_party": MODULE, "a_party_exits": "import sys\nsys.exit(0)\n", "not_python": "syntax error\n"}

    def add(target):
        points = {group: {"party": target} for group in ("backends", "policies", "gates")}
        install(monkeypatch, tmp_path, points, **modules)

    return add


def contract_with_gate(**parameters):
    safety = scripted_tasks.document()["safety"]
    return scripted_tasks.contract(safety={**safety, "gates": {"party": parameters}})


MAKERS: dict = {
    "backend": (lambda: embodied_env.make("arm_reach", backend="party"), UsageError, "backend 'party' cannot be "),
    "policy": (lambda: embodied_env.load_policy("party:x", load_contract("arm_reach")), UsageError, "policy .*'party"),
    "gate": (lambda: make_command_filters(contract_with_gate()), ContractError, r"safety\.gates\.party: "),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("target", BROKEN)
def test_a_plug_in_that_cannot_be_made_is_an_error_of_ours(install_party, kind, target):
    install_party(target)
    make, error, problem = MAKERS[kind]
    with pytest.raises(error, match=problem):
        make()


@pytest.mark.parametrize("fails", ["reset", "filter"])
def test_a_gate_that_exits_stops_the_robot(install_party, fails):
    install_party("a_party:Gate")
    env = embodied_env.make(contract_with_gate(fails=fails), backend="fake")
    try:
        env.reset(seed=0)
        *_, truncated, info = env.step(env.action_space.sample())
        assert (truncated, info["end_reason"]) == (True, "safety_stop:gate.plugin")
    finally:
        env.close()


def env_with(install_party, call, error, **options):
    install_party("a_party:backend")
    options |= {"call": call, "error": error}
    return embodied_env.make("arm_reach", backend="party", **options)


@pytest.mark.parametrize("pacing", ["lockstep", "realtime"])
@pytest.mark.parametrize("error", [KeyError("boom"), SystemExit(0), TimeoutError()], ids=repr)
@pytest.mark.parametrize("call", ["send", "advance", "read"])
def test_any_error_of_a_backend_in_a_step_is_a_loss_of_the_world(install_party, close_later, call, error, pacing):
    env = close_later(env_with(install_party, call, error, pacing=pacing))
    env.reset(seed=0)
    *_, truncated, info = env.step(env.action_space.sample())
    assert (truncated, info["end_reason"]) == (True, f"backend_lost:{type(error).__name__}")
    with pytest.raises(ResetNeededError):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("call", ["open", "reset", "close", "processes"])
def test_any_error_of_a_backend_outside_a_step_names_it_with_its_cause(install_party, call):
    env = env_with(install_party, call, error := SystemExit(0))
    expected = BackendNotReadyError if call in ("open", "reset") else BackendLostError
    with pytest.raises(expected, match=rf"'party' failed in {call}\(\): SystemExit: 0") as caught:
        getattr(env, "reset" if call == "open" else call)()
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [BackendNotReadyError("ours"), KeyboardInterrupt(), Terminated(143)], ids=repr)
def test_errors_of_ours_and_interrupts_of_a_backend_stay_as_they_are(install_party, error):
    with pytest.raises(type(error)) as caught:
        env_with(install_party, "reset", error).reset()
    assert caught.value is error


def test_a_backend_of_another_package_keeps_its_abilities_and_an_error_of_halt_is_a_warning(install_party):
    found = env_with(install_party, "halt", KeyError("boom")).unwrapped.stepper.backend
    own = embodied_env.make("arm_reach", backend="fake").unwrapped.stepper.backend
    abilities = [each for each in vars(base).values() if getattr(each, "_is_runtime_protocol", False)]
    assert [isinstance(found, each) for each in abilities] == [isinstance(own, each) for each in abilities]
    with pytest.warns(UserWarning, match=r"failed in halt\(\)"):
        found.halt("test")


def terminate(*_):
    raise Terminated(143)


def in_foreign_code():
    with foreign_code(UsageError):
        terminate()


TASK = SimpleNamespace(judge=terminate, reset=terminate, terms=())
STILL = Snapshot(now_ns=0, samples={})
TERMINATED = {
    "foreign code": in_foreign_code,
    "a step": lambda: judge_step(TASK, None, STILL, STILL, np.zeros(1)),
    "a reset": lambda: judge_reset(TASK, None, STILL, {}),
}


@pytest.mark.parametrize("case", TERMINATED)
def test_sigterm_in_foreign_code_ends_the_program(case):
    with pytest.raises(Terminated):
        TERMINATED[case]()


CLASS = """
from dataclasses import make_dataclass
class Own:
    Parameters, terms, version, judge = make_dataclass("Parameters", []), (), 1, None
    def __init__(self, *_): {}
"""


@pytest.mark.parametrize("source", ["{}", CLASS], ids=["module", "class"])
def test_sigterm_while_a_task_is_loaded_ends_the_program(tmp_path, source):
    raising = "from embodied_env.processes.signals import Terminated; raise Terminated(143)"
    (tmp_path / "own.py").write_text(source.format(raising))
    with pytest.raises(Terminated):
        load_task(changed_contract("arm_reach", {"task": {"type": "own:Own"}}), file=tmp_path / "own.py")


@pytest.mark.parametrize("taken", [(), ("seed",), ("seed", "episode_index")])
def test_the_reset_of_a_callable_is_given_what_it_takes(taken):
    scope = {"given": (given := [])}
    exec(f"def reset({', '.join(('self', *taken))}): given.append([{', '.join(taken)}])", scope)  # noqa: S102
    act = type("Act", (), {"reset": scope["reset"], "__call__": lambda *_: np.zeros(6)})()
    as_policy(act).reset(seed=3, episode_index=7)
    assert given == [[{"seed": 3, "episode_index": 7}[name] for name in taken]]


def test_a_reset_that_needs_other_arguments_is_refused_before_the_first_episode():
    act = type("Act", (), {"reset": lambda _, observation: observation, "__call__": lambda *_: np.zeros(6)})()
    with pytest.raises(UsageError, match=r"reset\(\) that needs 'observation'"):
        as_policy(act)


@pytest.mark.needs("vector")
@pytest.mark.parametrize("backend", ["fake", "mujoco"])
@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_the_close_of_a_vector_closes_every_slot_after_an_error(backend, error):
    env = embodied_env.make_vec("arm_reach", num_envs=3, backend=backend)
    env.reset(seed=0)
    first, *others = env.envs

    class Failing:
        unwrapped = first.unwrapped

        def close(self):
            first.close()
            raise error

    slots: list = env.envs
    slots[0] = Failing()
    with pytest.raises(error):
        env.close()
    assert env.closed
    for other in others:
        with pytest.raises(ClosedError):
            other.step(other.action_space.sample())


LIMITS: dict = {"position": (-1.0, 1.0), "velocity": 0.1, "acceleration": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        None,
        [("j1", JointLimits(**LIMITS))],
        {"j1": 0.1},
        {"j1": {"velocity": 0.1}},
        {"j1": JointLimits(**{**LIMITS, "velocity": "slow"})},
        {"j1": JointLimits(**{**LIMITS, "position": 1.0})},
        {"j1": JointLimits(**{**LIMITS, "position": (0.0, 1.0, 2.0)})},
    ],
)
def test_wrong_changes_of_limits_change_nothing(changes):
    gate = SafetyGate(load_contract("arm_reach"))
    with pytest.raises((UsageError, ContractError), match=r"invalid limits|expected"):
        gate.change_limits(changes)
    assert gate.changed is None
