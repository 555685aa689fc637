"""Fingerprints, names and formats that files and messages contain are those of the golden files.

They stay as they are when code moves. For a change that is meant, ``EMBODIED_ENV_WRITE_GOLDEN=1`` rewrites the files.
"""

import dataclasses
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from strategies import changed, parse

import embodied_env
from embodied_env import errors
from embodied_env.contract import contract_schema as schema
from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.contract_schema import PROVENANCE, RESERVED
from embodied_env.contract.fingerprint import SEMANTICS, SHIPPED_TASKS, _is_default
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.policy import PolicyIdentity, as_policy, policy_seed
from embodied_env.core.types import Finding
from embodied_env.plugins.plugin_table import built_in_classes
from embodied_env.policies import policy_file
from embodied_env.policies.policy_loader import load_policy
from embodied_env.policies.policy_model import ArraySpec
from embodied_env.record import read_run, row_types
from embodied_env.record.row_types import RUN
from embodied_env.ros.wire import simulator_protocol as embedded
from embodied_env.safety.relay import relay_protocol as relay
from embodied_env.timing import delay_model
from embodied_env.timing import latency_profile as profile

GOLDEN = Path(__file__).parent / "golden"
VARYING = {
    *(
        "ended_utc",
        "folder",
        "host",
        "processes",
        "ros",
        "head",
        "log_time_ns",
        "previous_sha256",
        "run_id",
        "scheduling",
        "sha256",
        "source",
    ),
    *("source_sha256", "started_utc", "text", "versions", "wrapper_version"),
}
EVERY_KEY = {
    name: parse_contract(json.dumps(document).replace("Infinity", ".inf"), source=str(GOLDEN / "every_key.yaml"))
    for name, document in yaml.safe_load((GOLDEN / "every_key.yaml").read_text()).items()
}


def lines_of(value, path=""):
    """Yield a line for each leaf with its path and its value, floats to nine digits, unless it varies."""
    if path.rpartition(".")[2] in VARYING:
        yield f"{path}: ..."
    elif isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from lines_of(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        for index, each in enumerate(value):
            yield from lines_of(each, f"{path}[{index}]")
    else:
        yield f"{path}: {json.dumps(rounded(value))}"


def rounded(value):
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


def fingerprints(_):
    """Return the fingerprint of every shipped contract and team, and of contracts with every key."""
    from embodied_env.extensions.teams.team_file import load_team

    return {
        **{name: load_contract(name).fingerprint for name in sorted(shipped_files())},
        **{name: load_team(name).world.fingerprint for name in sorted(shipped_files("teams"))},
        **{f"every_key.{name}": contract.fingerprint for name, contract in EVERY_KEY.items()},
        "backend": {name: load_contract("arm_reach").backend_fingerprint(name) for name in ("fake", "mujoco", "real")},
        "limits": relay.limits_fingerprint(ActionLayout(load_contract("door_open"))),
    }


def names(_):
    """Return the names of classes, tasks and schemas that files, seeds and messages contain."""
    from embodied_env.extensions.comparison import run_comparison as compare
    from embodied_env.extensions.evaluation import evaluation_engine as engine
    from embodied_env.extensions.export import run_export as export

    arm = load_contract("arm_reach")
    of_runs = [RUN, row_types.RESET, row_types.TRANSITION, export.EXPORT, engine.EVALUATION, compare.SCHEMA]
    return {
        "schemas": [*of_runs, *(each.SCHEMA for each in (schema, policy_file, profile, delay_model))],
        "semantics": SEMANTICS,
        "tasks": dict(SHIPPED_TASKS),
        "policies": {name: load_policy(name, arm).identity.name for name in ("hold", "random", "scripted")},
        "function": as_policy(json.dumps).identity.name,
        "policy_seed": policy_seed(1, 2),
        "spec": dataclasses.asdict(gymnasium.spec("embodied_env/ArmReach-v0")),
        "gates": GATES,
        "public": sorted(embodied_env._LAZY_EXPORTS),
        "errors": {
            name: [base.__name__ for base in each.__bases__]
            for name, each in inspect.getmembers(errors, inspect.isclass)
            if issubclass(each, errors.EmbodiedEnvError)
        },
    }


def wire(_):
    """Return messages of the relay, of the embedded simulator and of the policy server, and their topics."""
    from embodied_env.extensions.remote.policy_messages import unpack
    from embodied_env.extensions.remote.policy_server import PolicyServer

    arm, cart = (ActionLayout(load_contract(name)) for name in ("arm_reach", "cart_goal"))
    tag = relay.CommandId(epoch=1_700_000_000_000_000, seq=12)
    finding = Finding(
        gate="joint_limits",
        severity=Severity.LIMIT,
        code="vel.limit",
        joints=("j1",),
        before=np.array([np.inf]),
        after=np.array([0.5]),
        limit=np.array([np.nan]),
        detail="why",
    )
    two = {name: np.array([0.5, -1.0]) for name in ("applied", "applied_si", "velocity_si")}
    report = relay.RelayReport(
        tag=relay.CommandId(epoch=7, seq=1, tick=2),
        cause="tick",
        published=True,
        disposition=Severity.LIMIT,
        findings=(finding,),
        dt_s=0.05,
        guaranteed={"position": True, "jerk": False},
        joints=("j1", "j2"),
        number=4,
        published_ns=17,
        setpoints={"rate_hz": 200.0, "sent": 10, "worst_gap_s": 0.25},
        grippers={"gripper": {"goal": 0.5, "state": "sent", "goals_sent": 1}},
        **two,
    )
    state = relay.RelayState(
        state="armed", epoch=3, braking=True, latched="x", detail="y", fingerprint="f", limits="l", inputs={"a": "ok"}
    )
    reset = embedded.ResetReply(epoch=1, stamp_ns=2, sampled={"a": [1.0]}, fingerprint="f", details={"gl": "egl"})
    texts = {
        "report": report,
        "state": state,
        "armed": relay.Armed(epoch=1, fingerprint="f", limits="l", outside=("j1",)),
        "reset": reset,
        "fault": embedded.SimulatorFault(epoch=1, why="sim_unstable", detail="d"),
    }
    commands = {
        "position": relay.write_command(tag, np.linspace(0.0, 1.0, arm.size), arm, stamp_ns=5),
        "velocity": relay.write_command(tag, np.linspace(0.0, 1.0, cart.size), cart),
        "hold": relay.write_command(tag, Severity.HOLD, arm),
        "stop": relay.write_command(tag, Severity.STOP, arm),
    }
    model: Any = Model()
    return {
        **{
            name: {key: text for key, text in constants.items() if key.isupper() and isinstance(text, str | int)}
            for name, constants in (("relay", vars(relay)), ("embedded", vars(embedded)))
        },
        "message": {name: json.loads(message.to_text()) for name, message in texts.items()},
        "command": {name: dataclasses.asdict(fields) for name, fields in commands.items()},
        "step": embedded.StepRequest(epoch=1, step=2, digests=(embedded.command_crc32(np.array([0.5])),)).to_data(),
        "stepped": embedded.StepAck(epoch=1, step=2, newest=((10, 1), (20, 2))).to_data(),
        "policy_server": unpack(PolicyServer(model, contract=load_contract("arm_reach"))._metadata),
    }


class Model:
    identity = PolicyIdentity(name="m", format="test", sha256="0" * 64, library="l 1")

    def __init__(self):
        self.inputs = {"obs": ArraySpec(shape=(None, 3), dtype=np.dtype("f4"), low=np.zeros(3), high=np.ones(3))}
        self.outputs = {"action": ArraySpec(shape=(6,), dtype=np.dtype("f4"))}


def run(folder):
    """Return manifest, summary and rows of a recorded run whose step is clipped."""
    document = changed("task", {"type": "no_goal"})
    del document["sensors"]["tcp"], document["sensors"]["target"]
    contract = parse(document)
    env = embodied_env.make(contract, backend="fake", clock="virtual", record=folder, max_episode_steps=1)
    env.reset(seed=1)
    env.step(np.full(2, 3.0))
    env.close()
    found = read_run(env.path)
    summary = json.loads((env.path / "summary.json").read_text())
    return {"manifest": found.manifest, "summary": summary, "row": list(found.rows())}


FILES = [
    pytest.param(fingerprints, marks=pytest.mark.needs("teams"), id="fingerprints"),
    pytest.param(names, marks=pytest.mark.needs("comparison", "evaluation", "export"), id="names"),
    pytest.param(wire, marks=pytest.mark.needs("remote"), id="wire"),
    pytest.param(run, id="run"),
]


@pytest.mark.parametrize("build", FILES)
def test_golden_file_has_not_changed(build, tmp_path):
    file, text = GOLDEN / f"{build.__name__}.txt", "".join(f"{line}\n" for line in lines_of(build(tmp_path)))
    if os.environ.get("EMBODIED_ENV_WRITE_GOLDEN"):
        file.write_text(text)
    assert file.read_text().splitlines() == text.splitlines()


def test_numbers_of_codes_never_change():
    """A code that is new has its number in ``docs/reference/faults.md`` until it is added here."""
    pinned = [line.split(": ") for line in (GOLDEN / "codes.txt").read_text().splitlines()]
    assert {name: CODES.get(name) for name, _ in pinned} == {name: int(number) for name, number in pinned}


def keys_of(value):
    """Yield class and name of each optional key, at any depth, and whether it differs from its default."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            if field.default is not field.default_factory:  # one of them is given
                yield (type(value).__name__, field.name), not _is_default(field, each)
            yield from keys_of(each)
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ():
        yield from keys_of(each)


def test_the_contracts_with_every_key_have_every_key():
    keys = {found for contract in EVERY_KEY.values() for found in keys_of(contract)}
    left_out = {key for key, is_given in keys if not is_given and (key, True) not in keys}
    own_tests = {field.name for each in built_in_classes("interlocks") for field in dataclasses.fields(each.keys)}
    assert {name for _, name in left_out} <= {"qos", "backends", *PROVENANCE, *RESERVED, *own_tests}
