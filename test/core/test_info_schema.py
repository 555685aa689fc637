"""The schema of info is generated from its types, and info follows it on disk and in memory."""

import copy
import dataclasses
import re

import numpy as np
import pytest
import strategies
from jsonschema import Draft202012Validator
from middleware_backend import MiddlewareBackend, two_actuators
from stable_ids import stable_repr

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.contract.typed_values import find_misfits
from embodied_env.core.code_table import GATES
from embodied_env.core.info_schema import info_schema
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.stepper import Stepper
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_schema import validate_returned
from embodied_env.record.row_types import StepRecord
from embodied_env.tasks import load_task
from embodied_env.timing.clock import ManualClock

SCHEMA = info_schema()
DEFS = SCHEMA["$defs"]


def validator(call):
    return Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{call}"}]})


def leaves(schema, path="$"):
    """Yield each leaf of a schema, which is anything but an object, a choice or a reference, with its path."""
    if "$ref" in schema:
        return
    children = {**schema.get("properties", {}), **schema.get("patternProperties", {})}
    children |= {str(i): option for i, option in enumerate(schema.get("anyOf", ()))}
    if not children:
        yield path, schema
    for key, child in children.items():
        yield from leaves(child, f"{path}.{key}")


def test_the_schema_is_a_valid_json_schema():
    Draft202012Validator.check_schema(SCHEMA)


def test_every_leaf_has_dtype_and_shape():
    found = [each for name, definition in DEFS.items() for each in leaves(definition, name)]
    assert found
    assert [path for path, leaf in found if not leaf["dtype"] or not isinstance(leaf["shape"], list)] == []


def monitored():
    contract = load_contract("arm_reach")
    return dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, mode="monitor"))


KINDS: list = ["drop", "nan", "stale", "future"]
FAULTS = tuple(ScriptedFault(kind=kind, step=2 + i) for i, kind in enumerate(KINDS))
CASES = {
    "fake": lambda: EmbodiedEnv("arm_reach", backend="fake", host_timing=True),
    "fake, evaluator": lambda: EmbodiedEnv("arm_reach", backend="fake", evaluator_info=True),
    "fake, virtual clock": lambda: EmbodiedEnv("arm_reach", backend="fake", clock="virtual"),
    "fake, free running": lambda: EmbodiedEnv("arm_reach", backend="fake", clock=ManualClock(), free_running=True),
    "fake, faults": lambda: EmbodiedEnv("arm_reach", backend="fake", faults=FAULTS, evaluator_info=True),
    "fake, lost": lambda: EmbodiedEnv("arm_reach", backend="fake", faults=[ScriptedFault(kind="refuse", step=4)]),
    "fake, monitoring": lambda: EmbodiedEnv(monitored(), backend="fake"),
    "fake, two actuators": lambda: EmbodiedEnv(two_actuators(), backend="fake", evaluator_info=True),
    "mujoco": lambda: EmbodiedEnv("arm_reach", backend="mujoco"),
    "mujoco, evaluator": lambda: EmbodiedEnv("arm_reach", backend="mujoco", evaluator_info=True),
}


def play(env, seed=3, steps=8):
    """Return the infos of a reset and the following steps, with valid, extreme and malformed actions."""
    infos = [env.reset(seed=seed)[1]]
    env.action_space.seed(seed)
    for step in range(steps):
        wild = [env.action_space.sample(), env.action_space.sample(), None, [float("nan")] * 6]
        *_, terminated, truncated, info = env.step(wild[step % 4])
        infos.append(info)
        if terminated or truncated:
            break
    return infos


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Yield an environment, and the infos of one episode."""
    if "mujoco" in request.param:
        pytest.importorskip("mujoco")
    env = CASES[request.param]()
    infos = play(env)
    env.close()
    return env, infos


def test_the_json_form_of_every_info_is_valid(case):
    _, (reset, *steps) = case
    validator("reset").validate(to_json_types(reset))
    for info in steps:
        validator("step").validate(to_json_types(info))


def test_in_memory_every_leaf_has_its_dtype_and_shape(case):
    env, (reset, *steps) = case
    contract = env.contract
    sizes = {"n_gates": len(GATES), "n_joints": sum(len(a.joints) for a in contract.actuators.values())}
    assert wrong_leaves(reset, DEFS["reset"], sizes, "reset") == []
    for info in steps:
        assert wrong_leaves(info, DEFS["step"], sizes, "step") == []


def test_the_keys_are_the_same_at_every_step(case):
    _, (_, first, *others) = case
    assert others
    for info in others:
        assert paths(info) == paths(first)


def paths(info, path=""):
    if not isinstance(info, dict):
        return [path]
    return [leaf for key, value in info.items() for leaf in paths(value, f"{path}.{key}")]


PYTHON_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def wrong_leaves(value, schema, sizes, path):
    """Return the paths in the in-memory `value` that differ from the annotations."""
    if "$ref" in schema:
        schema = {**DEFS[schema["$ref"].removeprefix("#/$defs/")], **schema}
    if "anyOf" in schema:
        return min((wrong_leaves(value, option, sizes, path) for option in schema["anyOf"]), key=len)
    if schema["type"] == "object":
        if type(value) is not dict:
            return [f"{path} is {value!r}"]
        names, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        found = {key: names.get(key) or next(s for p, s in patterns.items() if re.search(p, key)) for key in value}
        return [wrong for key in value for wrong in wrong_leaves(value[key], found[key], sizes, f"{path}.{key}")]
    dtypes = schema["dtype"] if isinstance(schema["dtype"], list) else [schema["dtype"]]
    if any(type(value) is PYTHON_TYPES.get(dtype) for dtype in dtypes) and schema["shape"] == []:
        return []
    right = isinstance(value, np.ndarray) and value.dtype.name in dtypes and value.ndim == len(schema["shape"])
    right = right and all(sizes.get(name, n) == n for name, n in zip(schema["shape"], value.shape, strict=True))
    return [] if right else [f"{path} is {value!r}, not {schema['dtype']}{schema['shape']}"]


@pytest.fixture
def middleware_infos():
    contract, clock = load_contract("arm_reach"), ManualClock()
    backend = MiddlewareBackend(contract, clock=clock)
    clock.virtual = False
    stepper = Stepper(contract, backend, load_task(contract, trust=True), clock=clock)
    stepper.reset(world_seed=1, options=None, seeded=True)
    infos = []
    for _ in range(4):
        stepper.begin(np.zeros(6))
        infos.append(stepper.finish().info)
    stepper.close()
    return infos


def test_transport_stages_are_valid_without_a_stamp(middleware_infos):
    for info in middleware_infos:
        validator("step").validate(to_json_types(info))
    assert to_json_types(middleware_infos[1])["latency"]["transport_s"]["joints"] == 2e-7
    assert to_json_types(middleware_infos[2])["latency"]["transport_s"]["joints"] is None
    assert paths(middleware_infos[1]) == paths(middleware_infos[2])


@pytest.fixture(scope="module")
def plain_infos():
    env = EmbodiedEnv("arm_reach", backend="fake", clock="virtual", host_timing=True)
    reset, step, *_ = map(to_json_types, play(env))
    env.close()
    return {"reset": reset, "step": step}


@pytest.fixture
def step_info(plain_infos):
    return plain_infos["step"]


def changed(info, path, value):
    """Return a copy of `info` with `value` at `path`, or without it for ABSENT."""
    result = copy.deepcopy(info)
    node = result
    *parents, last = path
    for key in parents:
        node = node[key]
    if value is strategies.ABSENT:
        del node[last]
    else:
        node[last] = value
    return result


def places(info, path=()):
    """Yield the path of every key in a plain info."""
    if isinstance(info, dict):
        for key, value in info.items():
            yield (*path, key)
            yield from places(value, (*path, key))


@pytest.mark.parametrize("kind", ["step", "reset"])
def test_no_key_may_be_missing(plain_infos, kind):
    for key in DEFS[kind]["required"]:
        assert not validator(kind).is_valid(changed(plain_infos[kind], (key,), strategies.ABSENT)), key


def test_additional_keys_are_rejected(step_info):
    for path in ("x", "safety.x", "latency.x", "sensors.joints.x", "safety.watchdog.x", "sensors.X"):
        assert not validator("step").is_valid(changed(step_info, path.split("."), 0)), path


NEVER_LOST = """
    latency_ms step_index end_reason is_success action.applied_si.j1 safety.disposition safety.dt_s
    sensors.joints.age_s latency.gate_s latency.hold_s.joints
"""


def test_values_that_cannot_be_missing_are_never_null(step_info):
    for path in NEVER_LOST.split():
        assert not validator("step").is_valid(changed(step_info, path.split("."), None)), path


def test_requested_values_and_terms_of_the_reward_may_be_null(step_info):
    assert validator("step").is_valid(changed(step_info, ("action", "requested"), [None] * 6))
    assert validator("step").is_valid(changed(step_info, ("task", "distance"), None))


WRONG = [strategies.ABSENT, None, "text", "", -7, 99, 0.5, True, [], [0] * 7, {}, {"x": 1}, {"X": None}]


@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("value", WRONG, ids=stable_repr)
def test_audit_and_jsonschema_agree_on_every_change_of_an_info(step_info, value, share):
    """The short edition changes a sixth of the places with each value, and gives each place a sixth of the values."""
    reference = validator("step")
    first = [stable_repr(each) for each in WRONG].index(stable_repr(value)) % share
    for path in [*places(step_info)][first::share]:
        info = changed(step_info, path, value)
        assert bool(find_misfits(info, StepRecord)) != reference.is_valid(info), path


def test_the_audit_names_path_value_and_expectation(step_info):
    info = changed(step_info, ("sensors", "joints", "quality"), 99)
    _, (violation,) = validate_returned({"info": info}, host_timing=False)
    assert violation.text.startswith("info.sensors.joints.quality is 99 (expected 0, 1, 2")
