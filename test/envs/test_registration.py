import inspect
import json
import warnings
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from shipped_contracts import changed_text

import embodied_env
from embodied_env.backends.backend_registry import BackendName
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.core.plugin_loading import load_plugin
from embodied_env.envs.env_options import DEFAULTS, BackendOptions, EnvOptions, MakeOptions
from embodied_env.errors import ContractError, ResetNeededError, UsageError
from embodied_env.plugins.plugin_lookup import get_plugin, known_backends, plugin_names

ARM = embodied_env.load_contract("arm_reach")


def make(**options):
    return embodied_env.make(ARM, **{"backend": "fake", **options})


@pytest.fixture
def registered():
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_defaults_are_those_of_every_option_of_an_environment():
    shared = BackendOptions.__optional_keys__ - {"spawn", "namespace"}
    assert DEFAULTS.keys() == EnvOptions.__optional_keys__ - shared


@pytest.mark.needs("gazebo", "replay")
def test_options_of_every_backend_of_this_package_are_declared():
    of_this_package = get_args(BackendName)  # other tests add a backend
    names = [name for name in plugin_names("backends") if name.partition(".")[0] in of_this_package]
    parameters = [inspect.signature(load_plugin(get_plugin("backends", name), name)).parameters for name in names]
    assert set().union(*parameters) - {"contract", "clock"} == BackendOptions.__optional_keys__


def test_make_documents_every_option():
    documented = inspect.getdoc(embodied_env.make)
    for name in {"contract"} | MakeOptions.__optional_keys__ - BackendOptions.__optional_keys__ | {"spawn"}:
        assert f"\n    {name}: " in documented


def test_backend_names_are_those_of_the_registry():
    assert set(known_backends()) - set(get_args(BackendName)) <= {"delayed_fake"}  # added by other tests


def test_spec_has_the_given_options():
    env = make(clock="virtual", evaluator_info=False, step_timeout_s=2.0)
    assert env.spec.kwargs.keys() == {"contract", "backend", "clock", "step_timeout_s"}


@pytest.mark.needs("vector")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", ["name", "path", "contract"])
def test_registered_contract_is_made_by_gymnasium(close_later, kind, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(changed_text(ARM))
    monkeypatch.chdir(tmp_path)
    given: dict = {"name": "arm_reach", "path": "mine.yaml", "contract": ARM}
    name = embodied_env.register(given[kind], "my/Arm-v3")
    monkeypatch.chdir("/")
    env: Any = gymnasium.make(name, backend="fake", max_episode_steps=7)
    assert env.unwrapped.contract.fingerprint == ARM.fingerprint
    assert json.loads(env.spec.to_json())["id"] == "my/Arm-v3"
    env.close()
    vector = close_later(gymnasium.make_vec(name, num_envs=2, backend="fake"))
    assert vector.num_envs == 2


@pytest.mark.usefixtures("registered")
def test_default_id_is_the_name_of_the_contract():
    with warnings.catch_warnings(action="error"):  # the shipped one is already registered
        assert embodied_env.register("arm_reach") == embodied_env.register("arm_reach") == "embodied_env/ArmReach-v0"
    with pytest.warns(UserWarning, match="Overriding environment embodied_env/ArmReach-v0"):
        embodied_env.register(ARM)


def test_repr_names_contract_world_and_state():
    env = make()
    known = f"<EmbodiedEnv arm_reach v{ARM.version} ({ARM.fingerprint[:12]}) on fake, lockstep, "
    assert repr(env) == f"{known}not opened>"
    env.reset(seed=1)
    env.step(env.action_space.sample())
    assert str(env) == f"{known}step 1 of episode 0>"
    assert repr(gymnasium.wrappers.TimeLimit(env, 5)) == f"<TimeLimit{env}>"
    env.close()
    assert repr(env) == f"{known}closed>"


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (np.zeros((1, 6)), r"shape \(1, 6\) \(expected \(6,\)\)"),
        ([0.0] * 5, r"shape \(5,\) \(expected \(6,\)\)"),
        ("left", "dtype <U4 "),
        (None, "dtype object "),
    ],
    ids=["batch", "short", "text", "none"],
)
def test_malformed_action_warns_once_with_its_reason(close_later, action, words):
    env = close_later(make())
    env.reset(seed=1)
    with pytest.warns(UserWarning, match=f"malformed action: action has {words}.*brakes.*env.action_space"):
        env.step(action)
    with warnings.catch_warnings(action="error"):
        env.step(action)


def test_malformed_action_raises_no_warning_as_an_error(close_later):
    env = close_later(make())
    env.reset(seed=1)
    with warnings.catch_warnings(action="error"):
        assert env.step("left")[4]["action_clipped"]


def reset_env():
    env = make()
    env.reset(seed=1)
    return env


FRAMESKIP: dict = {"frameskip": 4}
UNEXPECTED = {
    "make": lambda: make(frameskip=4),
    "gymnasium.make": lambda: gymnasium.make("embodied_env/ArmReach-v0", backend="fake", frameskip=4),
    "make_vec": lambda: embodied_env.make_vec("arm_reach", num_envs=1, **FRAMESKIP),
    "make_vec with options of slots": lambda: embodied_env.make_vec(
        "arm_reach", num_envs=1, per_slot=[{"frameskip": 4}]
    ),
    "gymnasium.make_vec": lambda: gymnasium.make_vec("embodied_env/ArmReach-v0", num_envs=1, frameskip=4),
    "the constructor": lambda: embodied_env.EmbodiedEnv("arm_reach", **FRAMESKIP),
    "parallel_env": lambda: embodied_env.parallel_env("two_carts", **FRAMESKIP),
}


def marks_of(name):
    words = {
        "make_vec": "vector",
        "vector": "vector",
        "parallel_env": "teams",
        "team": "teams",
        "evaluate": "evaluation",
    }
    found = "explain" if name == "info of a vector" else next((words[word] for word in words if word in name), None)
    return [pytest.mark.needs(found)] if found else []


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name, marks=marks_of(name)) for name, call in UNEXPECTED.items()]
)
def test_an_unexpected_keyword_argument_is_a_type_error(call):
    """TorchRL tries `frameskip` first, and looks for the words of Python's own error."""
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'frameskip'"):
        call()


WRONG_CALLS = {  # call, error, what the message names
    "misspelt contract": (lambda: embodied_env.make("arm_reech"), ContractError, "did you mean 'arm_reach'"),
    "missing file": (lambda: embodied_env.make("my/robot.yaml"), ContractError, "my/robot.yaml.*expected a path"),
    "record of the environment alone": (
        lambda: gymnasium.make("embodied_env/ArmReach-v0", record="runs"),
        UsageError,
        r"keyword argument 'record' .*embodied_env\.make\(\.\.\., record=FOLDER\)",
    ),
    "no contract": (embodied_env.make, UsageError, "missing contract .*replay"),
    "unknown backend": (lambda: make(backend="mujocco"), UsageError, "'mujocco' .expected one of: fake, mujoco"),
    "unknown option": (lambda: make(evaluator_inf=True), UsageError, "'evaluator_inf'.*mean 'evaluator_info'"),
    "option of the command line": (
        lambda: make(out="runs"),
        UsageError,
        r"make\(\) got .* 'out' .*record.*mean 'record'",
    ),
    "option of evaluate": (
        lambda: embodied_env.evaluate("arm_reach", "hold", episode=3),  # type: ignore[call-arg]
        UsageError,
        r"evaluate\(\) got .* 'episode' .*mean 'episodes'",
    ),
    "a team": (lambda: embodied_env.make("two_arms"), ContractError, "'two_arms', which is a team"),
    "misspelt option of a vector": (
        lambda: embodied_env.make_vec("arm_reach", num_envs=1, thread=1),  # type: ignore[call-arg]
        UsageError,
        "'thread'.*mean 'threads'",
    ),
    "misspelt option of a team": (
        lambda: embodied_env.parallel_env("two_carts", evaluator_inf=True),  # type: ignore[call-arg]
        UsageError,
        "'evaluator_inf'.*mean 'evaluator_info'",
    ),
    "unknown fault": (
        lambda: make(faults=[ScriptedFault(kind="dely", step=1)]),  # type: ignore[arg-type]
        UsageError,
        "'dely'.*mean 'delay'",
    ),
    "option of another backend": (
        lambda: make(domain_id=5),
        UsageError,
        "backend 'fake' got .*'domain_id'.*other backends accept it",
    ),
    "pacing of another backend": (lambda: make(pacing="realtime", clock="virtual"), UsageError, "clock .*'virtual'"),
    "messages without a folder": (lambda: make(record_messages=True), UsageError, "record_messages.*expected a folder"),
    "step before reset": (lambda: make().step(np.zeros(6)), ResetNeededError, r"step\(\) .*call reset\(\) first"),
    "unknown reset option": (lambda: make().reset(options={"goal": 1}), UsageError, "'goal' .expected one of: target"),
    "info of a vector": (lambda: embodied_env.explain({"step_index": np.zeros(2)}), UsageError, "of one environment"),
    "recorder around another environment": (
        lambda: embodied_env.RecordTransitions(gymnasium.make("CartPole-v1"), "runs"),
        UsageError,
        "CartPoleEnv .expected an environment made by embodied_env",
    ),
    "unknown agent limits": (lambda: reset_env().change_limits({"j9": None}), UsageError, "'j9' .expected one of: j1"),
}


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [pytest.param(*case, id=name, marks=marks_of(name)) for name, case in WRONG_CALLS.items()],
)
def test_wrong_call_raises_one_error_that_names_it(call, error, named):
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize("spawn", [True, np.True_])
def test_a_default_of_numpy_is_the_default(spawn):
    """`spawn` is an option of backends over ROS, which others refuse unless it has its default."""
    make(spawn=spawn, evaluator_info=np.False_, view=np.False_).close()
