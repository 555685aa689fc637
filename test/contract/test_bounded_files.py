"""Files named by a contract are read as bounded regular files, and never opened for the contract of a run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

from embodied_env.cli.main import main
from embodied_env.contract.bounded_files import MOST_DATA_BYTES, read_file
from embodied_env.contract.contract_loader import (
    dump_contract,
    load_contract,
    pack_files,
    parse_contract,
    restore_contract,
    save_contract,
    unpack_files,
)
from embodied_env.contract.contract_schema import SHAPE
from embodied_env.contract.forward_kinematics import KinematicModel, TreeJoint, TreeShape, dump_shape, parse_shape
from embodied_env.contract.safety_schema import BoxSpec, WorkspaceSpec
from embodied_env.envs.registration import make
from embodied_env.errors import ContractError, EmbodiedEnvError
from embodied_env.record import read_run
from embodied_env.sim.world_model import SHIPPED

DATA = Path(__file__).parents[1] / "support" / "data"
ARM = load_contract("arm_reach")
CELL = WorkspaceSpec(
    keep_in={"cell": BoxSpec(low_m=(-0.7, -0.7, -0.05), high_m=(0.7, 0.7, 0.9))}, ignore_links=("base",)
)

HOSTILE = {  # kind -> the name of a file that is none, or none that is read
    "device": "/dev/zero",
    "link": "link",
    "fifo": "fifo",
    "directory": "directory",
    "large": "large",
    "missing": "missing",
    "nul": "nul\0nul",
    "process": "/proc/self/mem",
}
USES = {"audit_run": "audit", "replay_run": "replay", "export": "export"}
"""Readers of a run, with their extensions. A report reads a run like an export."""

EXAMINE = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)

from pkgutil import resolve_name

import embodied_env
from embodied_env import load_contract, make
from embodied_env.cli.main import main

def error_of(use, argument):
    del opened[:]
    try:
        use(argument)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error), "opened": list(opened)}
    return {"error": None, "message": "", "opened": list(opened)}

USES = {
    "load_contract": lambda path: load_contract(path),
    "world": lambda path: make(path, backend="mujoco").reset(seed=1),
    "audit_run": lambda path: None if embodied_env.audit_run(path).sound else 1 / 0,
    "replay_run": lambda path: resolve_name("embodied_env.extensions.replay.run_replay:replay_run")(path),
    "export": lambda path: main(["export", path, "--format", "jsonl", "--out", path + ".out"]) and 1 / 0,
}
for line in sys.stdin:
    key, use, path = json.loads(line)
    print(json.dumps([key, error_of(USES[use], path)]), file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a folder with a file of each hostile kind, and a run for each that names it."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "link").symlink_to("/dev/zero")
    os.mkfifo(folder / "fifo")
    (folder / "directory").mkdir()
    with (folder / "large").open("wb") as file:
        file.truncate(MOST_DATA_BYTES + 1)  # sparse
    return folder


def contract_file(folder, kind, name, text):
    file = folder / f"{kind}_{name}.yaml"
    file.write_text(text)
    return str(file)


def naming(urdf):
    return json.dumps({**json.loads(dump_contract(ARM)), "safety": {"urdf": urdf}})


def with_model(model, contract=ARM):
    text = json.loads(dump_contract(contract))
    text["backends"]["mujoco"]["model"] = model
    return json.dumps(text)


@pytest.fixture(scope="module")
def examined(folder):
    """Return the result of each use of each hostile name, in one process with limits of memory and time."""
    with make("arm_reach", backend="fake", record=folder / "runs") as env:
        env.reset(seed=1)
        env.step(np.zeros(6))
    asked = []
    for kind, name in HOSTILE.items():
        asked.append([f"load {kind}", "load_contract", contract_file(folder, "urdf", kind, naming(name))])
        asked.append([f"world {kind}", "world", contract_file(folder, "model", kind, with_model(name))])
        run = shutil.copytree(env.path, folder / "runs" / kind)
        with edited_manifest(run) as manifest:
            manifest["contract"] |= {"source": str(folder / "arm.yaml"), "text": naming(name)}
        asked += [[f"{use} {kind}", use, str(run)] for use in USES]
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stderr.splitlines() if line.startswith("["))


@pytest.mark.parametrize(("use", "key"), [("load", "safety.urdf"), ("world", "backends.mujoco.model")])
def test_a_hostile_file_of_a_contract_file_gives_one_clear_error(use, key, examined):
    for kind in HOSTILE:
        found = examined[f"{use} {kind}"]
        if (use, kind) != ("world", "process"):  # MuJoCo reads this one, and fails
            assert (found["error"], key in found["message"]) == ("ContractError", True), kind


@pytest.mark.parametrize("use", [pytest.param(use, marks=pytest.mark.needs(name)) for use, name in USES.items()])
def test_a_run_that_names_a_file_is_read_without_opening_it(use, examined, folder):
    for kind, name in HOSTILE.items():
        found = examined[f"{use} {kind}"]
        assert {name, str(folder / name)}.isdisjoint(found["opened"]), kind
        if use == "replay_run":
            assert (found["error"], "safety.urdf" in found["message"]) == ("ContractError", True), kind


# ------------------------------------------------------------------------------------------ files recorded in a run


def audit_run(path):
    return resolve_name("embodied_env.extensions.audit:audit_run")(path)


def replay_run(path):
    return resolve_name("embodied_env.extensions.replay.run_replay:replay_run")(path)


@contextlib.contextmanager
def edited_manifest(run):
    """Let the manifest of a run be changed."""
    manifest = json.loads((run / "manifest.json").read_text())
    yield manifest
    (run / "manifest.json").write_text(json.dumps(manifest))


def recorded(folder, contract):
    with make(contract, backend="fake", record=folder / "runs") as env:
        env.reset(seed=1)
        for action in np.random.default_rng(1).uniform(-1.0, 1.0, (20, 6)):
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    return env.path


@pytest.fixture
def urdf_run(tmp_path):
    """A run with the limits and workspace of a URDF that was deleted afterwards."""
    (tmp_path / "slow.urdf").write_text((DATA / "arm6.urdf").read_text().replace('velocity="3', 'velocity="1'))
    safety = replace(ARM.safety, urdf="slow.urdf", workspace=CELL)
    file = tmp_path / "arm.yaml"
    file.write_text(dump_contract(replace(ARM, safety=safety)))
    path = recorded(tmp_path, file)
    (tmp_path / "slow.urdf").unlink()
    return path


@pytest.fixture
def model_run(tmp_path):
    """A run with the workspace of a MuJoCo model next to the contract, deleted afterwards."""
    shutil.copy(SHIPPED / "arm6.xml", tmp_path / "mine.xml")
    file = tmp_path / "arm.yaml"
    file.write_text(with_model("mine.xml", replace(ARM, safety=replace(ARM.safety, workspace=CELL))))
    path = recorded(tmp_path, file)
    (tmp_path / "mine.xml").unlink()
    return path


@pytest.mark.needs("audit", "replay")
@pytest.mark.parametrize("run", ["urdf_run", "model_run"])
def test_run_is_audited_and_replayed_from_recorded_files(run, request, monkeypatch):
    path = request.getfixturevalue(run)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # nor is the library needed
    assert audit_run(path).sound
    replay = replay_run(path)
    assert (replay.difference, replay.sound) == (None, True)
    assert not replay.contract_changed


@pytest.mark.needs("audit", "replay")
@pytest.mark.parametrize(("run", "name"), [("urdf_run", "slow.urdf"), ("model_run", SHAPE)])
def test_changed_content_of_a_run_is_reported(run, name, request):
    path = request.getfixturevalue(run)
    with edited_manifest(path) as manifest:
        manifest["contract"]["files"][name]["sha256"] = "0" * 64
    assert "manifest.contract" in audit_run(path).counts
    with pytest.raises(ContractError, match=name):
        replay_run(path)


@pytest.mark.needs("audit")
def test_another_urdf_in_a_run_has_another_fingerprint(urdf_run):
    with edited_manifest(urdf_run) as manifest:
        content = unpack_files(manifest["contract"]["files"])["slow.urdf"].replace(b'effort="', b'effort="1')
        manifest["contract"]["files"] = pack_files({"slow.urdf": content})
    assert "manifest.fingerprint" in audit_run(urdf_run).counts


@pytest.mark.needs("replay")
def test_a_run_without_the_shape_of_its_model_is_not_replayed_from_the_model(model_run):
    with edited_manifest(model_run) as manifest:
        manifest["contract"]["files"] = {}
    with pytest.raises(ContractError, match=r"safety\.workspace: shape of the robot not recorded"):
        replay_run(model_run)


@pytest.mark.needs("audit", "replay")
def test_malformed_files_of_a_run_give_one_error(urdf_run):
    for files in (None, [], {"x": None}, {"x": {}}, {"x": {"base64": "!", "sha256": ""}}, 5):
        with edited_manifest(urdf_run) as manifest:
            manifest["contract"]["files"] = files
        with pytest.raises(ContractError, match="files"):
            replay_run(urdf_run)
        assert main(["audit", str(urdf_run)]) == 1


@pytest.mark.needs("audit", "replay")
def test_a_replay_can_be_recorded_and_replayed_again(urdf_run, tmp_path):
    with make(backend="replay", run=urdf_run, record=tmp_path / "again", clock="virtual") as env:
        env.reset(seed=1)
        env.step(np.zeros(6))
        spec = env.spec.kwargs["contract"]
    assert restore_contract(spec).fingerprint == read_run(urdf_run).manifest["contract"]["fingerprint"]
    assert audit_run(env.path).sound


def test_a_contract_is_saved_with_the_content_that_was_read(tmp_path):
    (tmp_path / "arm.urdf").write_text((DATA / "arm6.urdf").read_text())
    contract = parse_contract(naming("arm.urdf"), source=str(tmp_path / "arm.yaml"))
    (tmp_path / "arm.urdf").write_text("changed since")
    again = restore_contract(json.loads(json.dumps(save_contract(contract))))
    assert (again, again.fingerprint, again.trusted) == (contract, contract.fingerprint, True)


# ------------------------------------------------------------------------------------------------------- reading files


def test_a_linked_file_is_read_and_a_growing_one_to_the_limit_and_rejected(tmp_path, monkeypatch):
    file = tmp_path / "growing"
    file.write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to("growing")
    assert read_file(tmp_path / "link") == b"x" * 10
    check = os.fstat

    def grow(descriptor):
        status = check(descriptor)
        with file.open("ab") as end:
            end.write(b"x" * 100)
        return status

    monkeypatch.setattr(os, "fstat", grow)
    with pytest.raises(OSError, match="too large"):
        read_file(file, most_bytes=50)


@pytest.mark.parametrize(
    "use",
    [
        "load_contract",
        "timing.delay_model:load_delays",
        "timing.latency_profile:read_profile",
        pytest.param("extensions.teams.team_file:load_team", marks=pytest.mark.needs("teams")),
    ],
)
def test_a_bad_file_named_by_the_user_gives_one_clear_error(use, folder):
    read = resolve_name(f"embodied_env.{use}")
    for kind in ("device", "link", "fifo", "directory", "nul", "missing"):
        with pytest.raises(EmbodiedEnvError):
            read(folder / HOSTILE[kind])


# --------------------------------------------------------------------------------------------------------------- sizes


def chain(joints, capsules):
    same: dict = {"frame": np.eye(4), "axis": np.array([0.0, 0.0, 1.0]), "ratio": 1.0, "offset": 0.0, "travel_m": 0.0}
    tree = [TreeJoint(parent=i - 1, slides=i % 2 == 1, column=i, **same) for i in range(joints)]
    shapes = [TreeShape(link=f"l{i}", joint=i % joints, ends_m=np.zeros((2, 3)), radius_m=0.1) for i in range(capsules)]
    return KinematicModel(tuple(f"j{i}" for i in range(joints)), tree, shapes)


def test_shape_round_trips_exactly():
    from embodied_env.sim.mujoco_kinematics import MujocoKinematics
    from embodied_env.sim.world_profile import load_profile

    pytest.importorskip("mujoco", reason="needs mujoco")
    model = MujocoKinematics(ARM, load_profile(ARM, "mujoco"))
    again = parse_shape(dump_shape(model))
    positions = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 6))
    assert again.capsules(positions).ends_m.tobytes() == model.capsules(positions).ends_m.tobytes()
    assert again.levers().apart.tobytes() == model.levers().apart.tobytes()
    assert (again.joints, again.adjacent) == (model.joints, model.adjacent)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["tree"][0].update(parent=3),
        lambda saved: saved["tree"][0].update(column=9),
        lambda saved: saved["tree"][0].update(frame=[]),
        lambda saved: saved["tree"][0].update(offset=None),
        lambda saved: saved["capsules"][0].update(joint=7),
        lambda saved: saved.update(joints="j1"),
        lambda saved: saved.pop("tree"),
    ],
)
def test_malformed_shape_is_rejected(change):
    saved = json.loads(dump_shape(chain(3, 2)))
    change(saved)
    with pytest.raises(ContractError, match=r"safety\.workspace"):
        parse_shape(json.dumps(saved).encode())


def test_too_many_capsules_are_rejected_before_computing_levers():
    with pytest.raises(ContractError, match=r"safety\.workspace: robot too large"):
        chain(500, 210).levers()
