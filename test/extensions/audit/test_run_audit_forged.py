"""The audit, the head, a simulation and a signature find some of the consistent forgeries of runs, but not all."""

import json
import shutil
import struct
import subprocess

import numpy as np
import pytest
from run_files import rewrite_log, unlinked

import embodied_env
from embodied_env.cli.main import main
from embodied_env.extensions.audit import audit_run
from embodied_env.record import read_run
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.row_log import LogWriter
from embodied_env.record.row_types import RESET
from embodied_env.record.summary import Summary

pytestmark = [pytest.mark.needs("replay"), pytest.mark.filterwarnings("error")]

STEPS, LAST = 7, np.full(6, 0.05, np.float32)


def recorded(folder, last=LAST):
    """Record two episodes that differ in the last action only."""
    pytest.importorskip("mujoco")
    env = embodied_env.make("arm_reach", backend="mujoco", record=folder)
    env.action_space.seed(2)
    for seed in (5, None):
        env.reset(seed=seed)
        for _ in range(STEPS - 1):
            env.step(env.action_space.sample() * np.float32(0.05))
    env.step(last)
    env.close()
    return env


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    """Return the rows of the same run, with another last action."""
    env = recorded(tmp_path_factory.mktemp("another"), np.full(6, -0.05, np.float32))
    return [unlinked(row) for row in read_run(env.path).rows()]


def forged(original, folder, change):
    """Copy a run, change its rows, and recompute its hashes, summary and seeds, as anyone can."""
    path = shutil.copytree(original.path, folder / "forged")
    rows = change([unlinked(row) for row in read_run(path).rows()])
    rewrite_log(path, rows)
    summary = Summary()
    for row in rows:
        summary.add(row)
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["seeds"] = [row["seed"] for row in rows if row["schema"] == RESET and row["seed"] is not None]
    file.write_text(json.dumps(manifest))
    losses = json.loads((path / "summary.json").read_text())["record"]
    made = {**summary.as_json(manifest["contract"]["fingerprint"]), "record": losses}
    (path / "summary.json").write_text(json.dumps(made))
    return path


OF_THE_ACTION = ("action", "action_clipped", "safety")


def replaced(rows, other, *, simulated):
    """Return rows with the last action of `other`, its report, and if `simulated` its results."""
    row, found = rows[-1], other[-1]
    row["action"], row["inner"]["action"] = found["action"], found["inner"]["action"]
    for key in ("report", "findings"):
        row["inner"][key] = found["inner"][key]
    for key in OF_THE_ACTION:
        row["info"][key] = found["info"][key]
    if simulated:
        row["observation"], row["reward"] = found["observation"], found["reward"]
        for key in ("observation", "evaluator", "reward"):
            row["inner"][key] = found["inner"][key]
        row["info"]["task"] = found["info"]["task"]
    return rows


def without_last_episode(rows):
    return rows[: max(number for number, row in enumerate(rows) if row["schema"] == RESET)]


def without_first_episode(rows):
    """Leave out the first episode, and renumber the rest and its rows."""
    second = max(number for number, row in enumerate(rows) if row["schema"] == RESET)
    for number, row in enumerate(rows[second:]):
        row["row"] = number
        row["info"]["episode_index"] -= 1
    return rows[second:]


FORGERIES = {  # and whether a simulation finds them
    "last action": (lambda rows, other: replaced(rows, other, simulated=False), True),
    "last action, simulated": (lambda rows, other: replaced(rows, other, simulated=True), False),
    "last 5 rows": (lambda rows, _: rows[:-5], False),
    "last episode": (lambda rows, _: without_last_episode(rows), False),
    "first episode": (lambda rows, _: without_first_episode(rows), True),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgery_is_sound_by_itself_and_found_by_the_head(original, another, tmp_path, forgery):
    change, is_simulated_otherwise = FORGERIES[forgery]
    path = forged(original, tmp_path, lambda rows: change(rows, another))
    assert audit_run(path).problems == ()  # the files alone prove nothing against an author who can write them
    assert main(["replay", str(path)]) == 0
    assert set(audit_run(path, expected_head=original.chain["head"]).counts) == {"run.head"}
    assert main(["audit", str(path), "--expect", original.chain["head"]]) == 1
    assert main(["replay", str(path), "--simulate"]) == int(is_simulated_otherwise)


def test_the_first_observation_of_an_episode_is_compared_with_that_of_the_environment(original, tmp_path):
    def change(rows):
        rows[0]["observation"]["tcp_position"][0] += 0.01
        return rows

    path = forged(original, tmp_path, change)
    assert main(["replay", str(path)]) == main(["replay", str(path), "--simulate"]) == 1


def test_original_has_its_head_and_simulates_the_same(original, capsys):
    chain = original.chain
    assert (chain["rows"], chain["resets"]) == (2 * STEPS + 1, 2)
    assert read_run(original.path).manifest["chain"] == chain
    assert main(["audit", str(original.path), "--expect", chain["head"]]) == 0
    assert capsys.readouterr().out.endswith(f"sound, {2 * STEPS - 1} transitions (simulator), head {chain['head']}\n")
    assert main(["replay", str(original.path), "--simulate"]) == 0
    for wrong in ("", "f" * 63, chain["head"].upper()):
        assert main(["audit", str(original.path), "--expect", wrong]) == 2


@pytest.mark.parametrize(
    ("key", "value"), [("backend", "real"), ("run_id", "another"), ("started_utc", "2020-01-01T00:00:00.000+00:00")]
)
def test_manifest_of_another_run_is_found_by_the_first_row(original, tmp_path, key, value):
    path = shutil.copytree(original.path, tmp_path / "run")
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    assert "row 0 has the hash of another run, contract or backend" in read_run(path).problem


@pytest.mark.parametrize("change", ["exchange", "drop", "shift", "publish", "topic"])
def test_rows_that_are_moved_break_the_chain(original, tmp_path, change):
    path = shutil.copytree(original.path, tmp_path / "run")
    log = path / "transitions.mcap"
    rows = [(stored.channel.topic, stored.record) for stored in McapRecords(log).messages()]
    if change == "exchange":
        rows[3], rows[4] = rows[4], rows[3]
    if change == "drop":
        del rows[3]
    log.unlink()
    writer = LogWriter(log, compression="none")
    for number, (topic, record) in enumerate(rows):
        written = "reset" if (change, number) == ("topic", 3) else topic
        log_time_ns = 7 if (change, number) == ("shift", 3) else record.log_time
        writer.append(written, record.data, number=number, log_time_ns=log_time_ns)
    writer.close()
    if change == "publish":
        data = log.read_bytes()
        time_ns = struct.pack("<Q", rows[3][1].log_time)
        log.write_bytes(data.replace(time_ns + time_ns, time_ns + bytes(8)))
    what = {"topic": "schema of its topic", **dict.fromkeys(("shift", "publish"), "log time of its message")}
    what = what.get(change, "hash of the row before it")
    assert f"the rows changed after recording: row 3 does not have the {what}" in read_run(path).problem


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_signature_of_the_manifest_covers_what_the_head_does_not(original, tmp_path):
    """The commands of docs/concepts/evidence.md."""
    path, key = shutil.copytree(original.path, tmp_path / "run"), tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "recorder", "-f", key], check=True)
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "embodied_env", path / "manifest.json"]
    subprocess.run(sign, check=True, capture_output=True)
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(f'recorder@lab namespaces="embodied_env" {key.with_suffix(".pub").read_text()}')
    options = ["-f", allowed, "-I", "recorder@lab", "-n", "embodied_env", "-s", path / "manifest.json.sig"]

    def verify():
        text = (path / "manifest.json").read_bytes()
        command = ["ssh-keygen", "-Y", "verify", *options]
        return subprocess.run(command, input=text, capture_output=True, check=False).returncode

    assert verify() == 0
    assert audit_run(path).sound
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "policy": {"name": "another"}}, indent=2))
    assert audit_run(path, expected_head=original.chain["head"]).sound
    assert verify() != 0
