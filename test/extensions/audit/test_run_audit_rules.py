"""Every audit rule has rows, or a run, that violate only this rule."""

import copy
import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
from delayed_fake import FakeDelays
from gymnasium.wrappers import TimeLimit
from run_files import record, relink, rewrite_log
from scripted_tasks import OneClock
from shipped_contracts import with_hidden_velocities

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract, parse_contract
from embodied_env.contract.contract_schema import RobotSource
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.audit import audit_lines, audit_run
from embodied_env.extensions.audit.annotation_rules import AccountRules
from embodied_env.extensions.audit.row_history_rules import BLOCK, STILL
from embodied_env.extensions.audit.run_rules import check_robot
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.manifest import describe_robot
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.safety.publishing.trajectory import Trajectories
from embodied_env.timing.clock import ManualClock

ABSENT = strategies.ABSENT
S = 1_000_000_000
MS = 1_000_000
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "audit.md"


# ---------------------------------------------------------------------------------------------------------------- worlds


def small(**settings):
    document = strategies.document()
    for path, value in settings.items():
        document = strategies.changed(path.replace("__", "."), value, document)
    return strategies.parse(document)


def with_camera():
    camera = {"type": "sensor_msgs/msg/Image", "topic": "front", "encoding": "rgb8", "max_age_s": 1.0}
    image = {"image": {"shape": [4, 5, 3], "unit": "1", "low": 0, "high": 255}}
    return small(episode__horizon_steps=300, sensors__front={**camera, "fields": image})


def slow_paced():
    """Return a paced world whose pacer has another period than its contract."""
    env = EmbodiedEnv("arm_reach", backend="fake", free_running=True, clock=ManualClock())
    backend: Any = env.stepper.backend
    backend.pacer._period_ns += 2 * MS
    return env


def paced():
    delays: Any = FakeDelays(driver_s=0.002, transport_s=0.001, queue_s=0.0005, publish_s=0.003, actuation_s=0.02)
    return EmbodiedEnv("arm_reach", backend="delayed_fake", clock=OneClock(start_ns=1), delays=delays)


def following():
    """Return a paced world whose controller executes trajectories."""
    trajectory = {"type": "trajectory_msgs/msg/JointTrajectory", "trajectory_steps": 3}
    contract = small(**{f"actuators__arm__{key}": value for key, value in trajectory.items()})
    env = EmbodiedEnv(contract, backend="fake", free_running=True, clock=ManualClock())
    env.stepper._arbiter.publishing = Trajectories(env.stepper.gate)
    return env


class OtherActions(EmbodiedEnv):
    """Executes other actions than those of the chunks that it is given."""

    def step(self, action):
        place = {"id": self.step_index, "born": self.step_index, "age": 0, "weight": 1.0, "length": 1, "older": []}
        account = {"mode": "wait", **place, **dict.fromkeys(("underruns", "expired", "failed"), 0)}
        self.annotate("chunk", {**account, "actions": [np.zeros(6)]})
        return super().step(action)


def latch(env):
    env.stepper.gate.latch(Finding(gate="latch", severity=Severity.STOP, code="latch.stop"))


GOAL = {"type": "scalar", "low": 0.0, "high": 1.0, "observed": True}

GRIPPER = {
    "topic": "gripper/command",
    "type": "control_msgs/action/GripperCommand",
    "command": "position",
    "joints": {"a": {"position": [0.0, 0.8], "velocity": 2.0}},
    "gripper": {"open": 0.8, "closed": 0.0},
}

DEGREES = {"unit": "deg"}

FINITE = {"horizon_steps": 3, "kind": "finite_horizon"}

DROP = ScriptedFault(kind="drop", step=2)


def fake(*faults, **settings):
    """Return what makes a fake world, of a small contract if it has settings."""
    return lambda: EmbodiedEnv(small(**settings) if settings else "arm_reach", backend="fake", faults=[*faults])


WORLDS = {  # environment, steps of each episode, episodes
    "plain": (fake(), 4, 2),
    "empty": (fake(), 0, 1),
    "hiding": (lambda: EmbodiedEnv(with_hidden_velocities(), backend="fake"), 25, 1),
    "horizon": (fake(episode__horizon_steps=3), 3, 2),
    "finite": (fake(episode=FINITE), 3, 1),
    "held": (fake(DROP), 3, 1),
    "history": (fake(DROP, sensors__tcp__fields__position__history=3), 4, 2),
    "applied": (fake(applied_actions=2), 3, 1),
    "drawn": (fake(reset_options__goal=GOAL), 3, 2),
    "seeing": (lambda: EmbodiedEnv(with_camera(), backend="fake"), STILL + 5, 1),
    "paced": (paced, 4, 1),
    "slow": (slow_paced, 2 * BLOCK, 1),
    "streamed": (fake(actuators__arm__setpoint_rate_hz=100), 4, 2),
    "gripper": (fake(actuators={"gripper": GRIPPER}), 4, 2),
    "in_degrees": (
        fake(sensors__joints__fields__position__driver=DEGREES, actuators__arm__joints__a__driver=DEGREES), 3, 1,
    ),
    "following": (following, 4, 1),
    "altered": (lambda: OtherActions("arm_reach", backend="fake"), 2, 1),
    "latched": (fake(), 1, 1),
    "limited": (lambda: TimeLimit(fake(episode={**FINITE, "horizon_steps": 2})(), 2), 2, 2),
}  # fmt: skip


def play(name, folder):
    make, steps, episodes = WORLDS[name]
    env = RecordTransitions(make(), folder)
    env.action_space.seed(4)
    for episode in range(episodes):
        env.reset(seed=3 if episode == 0 else None)
        if name == "latched":
            latch(env.unwrapped)
        for step in range(steps):
            moving = 0.1 * np.sin(1 + step + np.arange(env.action_space.shape[0]))
            env.step(moving if name in ("hiding", "seeing") else env.action_space.sample())
    env.close()
    return env.path


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Return a function from a name to its run directory and its contract."""
    folder, known = tmp_path_factory.mktemp("worlds"), {}

    def world(name):
        if name not in known:
            known[name] = play(name, folder)
        return known[name]

    return world


@functools.cache
def contract_of(path):
    return parse_contract(read_run(path).manifest["contract"]["text"])


# --------------------------------------------------------------------------------------------------------------- changes


def at(row, **changes):
    """Set each value at its path in `row` (``__`` is a dot, a number an index), or remove it."""
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        node = row
        for part in parents:
            node = node[part]
        if value is ABSENT:
            del node[last]
        else:
            node[last] = value


def both(row, **changes):
    """Set each value in the outer and the inner record, as if no wrapper had changed it."""
    at(row, **changes, **{f"inner__{path}": value for path, value in changes.items()})


def applied(row, joint, value):
    row["info"]["action"]["applied_si"][joint] = value
    row["inner"]["report"]["applied_si"][list(row["info"]["action"]["applied_si"]).index(joint)] = value


def restamp(row, sensor, ns, age_ns=None):
    """Move the stamp of a sensor reading by `ns`, at the same time of the observation unless an age is given."""
    reported, noted = row["info"]["sensors"][sensor], row.get("inner", {}).get("sensors", {})
    reported["stamp_ns"] += ns
    reported["age_s"] = (round(reported["age_s"] * S) - ns) / S if age_ns is None else age_ns / S
    if sensor in noted:
        noted[sensor]["stamp_ns"] += ns


def later(row, ns):
    """Move all steady stamps of a row."""
    for name in row["inner"]["stamps_ns"]:
        row["inner"]["stamps_ns"][name] += ns
    for sensor in row["inner"]["sensors"].values():
        sensor["arrival_ns"] += ns


def as_returned(rows):
    """Keep only what `step` returned of each transition, and the action."""
    fields = ("observation", "action", "reward", "terminated", "truncated", "info")
    rows[:] = [{field: row[field] for field in fields} for row in rows if row["schema"] != RESET]


def unchanged(_rows):
    pass


def only(rows, *numbers):
    rows[:] = [rows[number] for number in numbers]


def end(row, *reasons, terminated=False, truncated=False):
    at(row, inner__end_reasons=list(reasons), info__end_reason=reasons[0] if reasons else "")
    both(row, terminated=terminated, truncated=truncated)


PLAIN: dict = {
    "observation": [1.0],
    "action": 0,
    "reward": 1.0,
    "terminated": False,
    "truncated": False,
    "info": {"latency_ms": 1.0, "action_clipped": False, "wrapper_version": "theirs 1"},
}


def foreign(*changes):
    def change(rows):
        rows[:] = [copy.deepcopy(PLAIN) for _ in changes]
        for row, values in zip(rows, changes, strict=True):
            at(row, **values)

    return change


def annotated(name, account_of, number, changes):
    """Return a change that gives every step an account, and that of the row `number` these values."""

    def change(rows):
        for place, row in enumerate(rows):
            if row["schema"] != RESET:
                account = account_of(row["info"]["step_index"] - 1) | (changes if place == number else {})
                row["info"]["annotations"] = row["inner"]["external_inputs"]["annotations"] = {name: account}

    return change


def chunked(number, **changes):
    place = {"mode": "replace", "id": 0, "born": 0, "weight": 1.0, "older": []}
    place |= dict.fromkeys(("underruns", "expired", "failed"), 0)
    return annotated("chunk", lambda age: {**place, "age": age, "length": age + 1}, number, changes)


def streamed(number, **changes):
    return annotated("setpoints", lambda _: {"rate_hz": 100.0, "sent": 1, "worst_gap_s": 0.0}, number, changes)


def gripping(number, **changes):
    """Return a change of the account of one gripper."""
    account = {"goal": 0.5, "state": "reached", "goals_sent": 1}
    return annotated("grippers", lambda _: {"gripper": account}, number, {"gripper": account | changes})


def with_points(number, change):
    def change_rows(rows):
        for part in (rows[number]["info"], rows[number]["inner"]["external_inputs"]):
            change(part["annotations"]["trajectory"]["points"])

    return change_rows


LINES: dict = {}  # rule -> world, change of its rows
RUNS: dict = {}  # rule -> world, change of its rows or None, change of its directory or None


def lines(rule, world="plain"):
    return lambda change: LINES.update({rule: (world, change)})


LINES |= {
    "row.object": ("plain", lambda rows: rows.append([1, 2])),
    "row.made_up": ("plain", lambda rows: at(rows[2], inner=None)),
    "row.shape": ("plain", lambda rows: at(rows[2], info__sensors__tcp__quality=77)),
    "field.missing": ("plain", foreign({"reward": ABSENT})),
    "field.type": ("plain", foreign({"terminated": 0})),
    "version.changed": ("plain", foreign({}, {"info__wrapper_version": "theirs 2"}, {"info__wrapper_version": "theirs 2"})),
    "outside.observation": ("plain", lambda rows: at(rows[2], observation__tcp_position__0=0.5)),
    "outside.action": ("plain", lambda rows: at(rows[2], action__0=0.125)),
    "outside.reward": ("plain", lambda rows: at(rows[2], reward=7.0)),
    "outside.terminated": ("plain", lambda rows: at(rows[4], terminated=True)),
    "outside.truncated": ("plain", lambda rows: at(rows[4], truncated=True)),
    "ending.both": ("plain", foreign({"terminated": True, "truncated": True})),
    "ending.flags": ("horizon", lambda rows: both(rows[3], truncated=False)),
    "ending.reason": ("plain", lambda rows: at(rows[2], info__end_reason="time_limit")),
    "ending.order": ("horizon", lambda rows: at(rows[3], inner__end_reasons=["time_limit", "safety_stop:form.nan"])),
    "ending.policy": ("plain", lambda rows: end(rows[4], "policy_lost:late", truncated=True)),
    "ending.success": ("plain", lambda rows: at(rows[2], info__is_success=True)),
    "time_limit.early": ("plain", lambda rows: end(rows[4], "time_limit", truncated=True)),
    "time_limit.missed": ("horizon", lambda rows: end(rows[3])),
    "time_limit.kind": ("horizon", lambda rows: end(rows[3], "horizon", terminated=True)),
    "time_limit.remaining": ("finite", lambda rows: both(rows[1], observation__time_remaining=[0.9])),
    "gates.account": ("plain", lambda rows: at(rows[1], info__safety__disposition=2)),
    "clipping.flags": ("plain", lambda rows: at(rows[1], info__action_clipped=False)),
    "action.account": ("plain", lambda rows: at(rows[2], info__safety__dt_s=0.06)),
    "annotations.account": ("plain", lambda rows: at(rows[2], info__annotations={"inference": {"late": 0}})),
    "chunk.account": ("plain", chunked(2, weight=None)),
    "chunk.age": ("plain", chunked(2, age=2)),
    "chunk.weight": ("plain", chunked(2, weight=0.5)),
    "chunk.order": ("plain", chunked(4, id=0, born=1, age=2)),
    "chunk.underrun": ("plain", chunked(4, underruns=1)),
    "setpoints.account": ("streamed", streamed(4, rate_hz=200.0)),
    "setpoints.sent": ("streamed", streamed(4, sent=10_000)),
    "setpoints.gap": ("streamed", streamed(4, worst_gap_s=3600.0)),
    "gripper.account": ("gripper", gripping(2, state="open")),
    "gripper.goal": ("gripper", gripping(9, goal=0.9, state="unsent")),
    "gripper.sent": ("gripper", gripping(4, goals_sent=2)),
    "limits.trajectory": ("following", with_points(3, lambda points: points.insert(2, [9.0] * len(points[0])))),
    "driver.command": ("in_degrees", lambda rows: at(rows[2], info__action__applied_driver__a=1.0)),
    "driver.reading": (
        "in_degrees",
        lambda rows: at(rows[2], inner__sensors__joints__driver={"position": [9.0, 9.0]}),
    ),
    "action.observed": ("applied", lambda rows: both(rows[2], observation__applied_actions=[0.0, 0.0, 0.5, 0.5])),
    "option.observed": ("drawn", lambda rows: both(rows[3], observation__goal=[0.5])),
    "latency.stage": ("plain", lambda rows: at(rows[2], info__latency__gate_s=0.5)),
    "latency.sensor": ("plain", lambda rows: at(rows[2], info__latency__hold_s__tcp=0.5)),
    "latency.quality": ("paced", lambda rows: at(rows[2], info__latency__data_age_s__tcp=-0.5)),
    "latency.total": ("plain", lambda rows: at(rows[2], info__latency_ms=5.5)),
    "sensor.account": ("plain", lambda rows: at(rows[2], info__sensors__tcp__age_s=0.001)),
    "sensor.mask": ("plain", lambda rows: both(rows[2], observation__joints_valid=[0])),
    "frame.back": ("plain", lambda rows: restamp(rows[3], "tcp", -60 * MS)),
    "frame.repeated": ("plain", lambda rows: restamp(rows[3], "tcp", -50 * MS)),
    "frame.seq": ("plain", lambda rows: at(rows[4], info__sensors__tcp__seq=1)),
    "frame.held": ("held", lambda rows: both(rows[2], observation__tcp_position=[0.0, 0.0, 0.0])),
    "frame.history": ("history", lambda rows: both(rows[3], observation__tcp_position_age_s__0=0.5)),
    "reset.leak": ("plain", lambda rows: restamp(rows[0], "tcp", -100 * MS)),
    "reset.kept": ("plain", lambda rows: at(rows[5], observation=rows[4]["observation"])),
    "reset.latched": ("latched", unchanged),
    "reset.solved": ("plain", lambda rows: at(rows[0], info__reset__judged=False)),
    "episode.reset_missing": ("plain", lambda rows: rows.pop(5)),
    "episode.step": ("plain", lambda rows: rows.pop(3)),
    "contract.fingerprint": ("plain", lambda rows: at(rows[2], info__contract="0" * 64)),
    "space.observation": ("plain", lambda rows: both(rows[2], observation__tcp_position=[0.0, 0.0, 9.0])),
    "space.action": ("plain", lambda rows: both(rows[2], action=[0.0, 0.0])),
    "period.drift": ("slow", unchanged),
}  # fmt: skip


@lines("gates.code")
def _(rows):
    as_returned(rows)
    rows[1]["info"]["safety"]["code"][0] = 1


@lines("clipping.hidden")
def _(rows):
    row = rows[1]
    size = len(row["info"]["safety"]["severity"])
    at(row, inner__findings=[], inner__report__disposition="PASS", info__safety__disposition=0)
    at(row, info__safety__severity=[0] * size, info__safety__code=[0] * size)
    at(row, info__action_clipped=False, info__safety__intervened=False)


@lines("clipping.idle")
def _(rows):
    at(rows[1], info__action__requested=rows[1]["info"]["action"]["applied"])
    at(rows[1], inner__report__requested=rows[1]["inner"]["report"]["applied"])
    for finding in rows[1]["inner"]["findings"]:
        finding["margin"] = [0.0] * len(finding["margin"])


@lines("limits.position")
def _(rows):
    only(rows, 0, 1)
    applied(rows[1], "j1", 50.0)


@lines("limits.velocity")
def _(rows):
    only(rows, 0, 1, 2)
    applied(rows[2], "j1", 0.5)


@lines("stamps.order")
def _(rows):
    stamps = rows[1]["inner"]["stamps_ns"]
    stamps["previous_entered"] = (stamps["previous_returned"] + stamps["entered"] + 1) // 2
    at(rows[1], info__latency__period_s=(stamps["entered"] - stamps["previous_entered"]) / S)


@lines("stamps.chain")
def _(rows):
    stamps = rows[2]["inner"]["stamps_ns"]
    stamps["previous_entered"] -= 1
    at(rows[2], info__latency__period_s=(stamps["entered"] - stamps["previous_entered"]) / S)


@lines("clock.steady")
def _(rows):
    for row in rows[6:]:
        later(row, -3600 * S)


@lines("clock.world", "paced")
def _(rows):
    for name, sensor in rows[4]["info"]["sensors"].items():
        before = rows[3]["info"]["sensors"][name]
        sensor["seq"] = before["seq"]
        restamp(rows[4], name, before["stamp_ns"] - sensor["stamp_ns"], round(before["age_s"] * S) - 1)


@lines("clock.origin")
def _(rows):
    for sensor in rows[4]["inner"]["sensors"].values():
        sensor["stamp_ns"] += 1


@lines("period.lockstep")
def _(rows):
    for name in rows[4]["info"]["sensors"]:
        restamp(rows[4], name, 1, 0)


@lines("sensor.stale")
def _(rows):
    only(rows, 1)
    restamp(rows[0], "tcp", -10 * S)


@lines("sensor.future")
def _(rows):
    only(rows, 1)
    restamp(rows[0], "tcp", S)


@lines("episode.after_end", "horizon")
def _(rows):
    only(rows, 0, 1, 2, 3)
    rows.append(copy.deepcopy(rows[3]))
    later(rows[4], S)


@lines("episode.index")
def _(rows):
    for row in rows:
        row["info"]["episode_index"] += 3


@lines("evaluator.leak", "hiding")
def _(rows):
    for row in rows:
        velocity = row["inner"]["evaluator"]["truth"]["velocity"][0]
        row["observation"]["tcp_position"][1] = velocity
        if "observation" in row["inner"]:
            row["inner"]["observation"]["tcp_position"][1] = velocity


@lines("evaluator.disclosed")
def _(rows):
    rows[2]["info"]["sensors"]["true_distance"] = copy.deepcopy(rows[2]["info"]["sensors"]["tcp"])


def manifest(**values):
    """Return a change of ``manifest.json``."""

    def change(path):
        file = path / "manifest.json"
        content = json.loads(file.read_text())
        at(content, **values)
        file.write_text(json.dumps(content))
        if "contract__fingerprint" in values:
            relink(path)

    return change


def summary(path):
    file = path / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "successes": 1}))


RUNS |= {
    "row.schema": ("plain", lambda rows: at(rows[2], schema="somebody/1"), None),
    "row.number": ("plain", lambda rows: rows.pop(7), None),
    "chunk.actions": ("altered", None, None),
    "array.missing": ("seeing", unchanged, None),  # rewritten without its arrays
    "run.unclean": ("plain", None, manifest(clean=False)),
    "run.head": ("plain", None, None),
    "run.empty": ("empty", None, None),
    "manifest.shape": ("plain", None, manifest(host=[])),
    "manifest.contract": ("plain", None, manifest(contract__text=None)),
    "manifest.fingerprint": ("plain", None, manifest(contract__fingerprint="0" * 64)),
    "manifest.backend_fingerprint": ("plain", None, manifest(backend_fingerprint="0" * 64)),
    "manifest.robot": ("plain", None, manifest(contract__robot={"name": "another"})),
    "manifest.backend": ("plain", lambda rows: at(rows[2], info__backend="real"), None),
    "manifest.world": ("plain", lambda rows: at(rows[2], info__world="robot"), None),
    "manifest.version": ("plain", None, manifest(versions__embodied_env="9.9")),
    "manifest.task": ("plain", None, manifest(task__terms=["distance"])),
    "manifest.seeds": ("plain", None, manifest(seeds=[4])),
    "manifest.wrappers": ("plain", None, manifest(wrappers__0=ABSENT)),
    "first.differs": ("plain", None, lambda path: (path / "first_transition.json").write_text("{}")),
    "summary.missing": ("plain", None, lambda path: (path / "summary.json").unlink()),
    "summary.differs": ("plain", None, summary),
}

TEXTS = {"line.broken": b'{"observation": '}
"""Rule -> a line that breaks it."""


def audited_lines(path, change):
    rows = list(read_run(path).rows())
    change(rows)
    theirs = rows[0]["info"].keys() == PLAIN["info"].keys()
    texts = [json.dumps(row).encode() for row in rows]
    return audit_lines(texts, path="rows", contract=None if theirs else contract_of(path))


def rewrite(path, change):
    rows = list(read_run(path).rows())
    change(rows)
    rewrite_log(path, rows)


# ------------------------------------------------------------------------------------------------------------------- rules


def documented(title):
    """Return the rules in the table of a section of the documentation."""
    (section,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (`[a-z_.`, ]+`) \|", section, flags=re.MULTILINE)
    return [name for cell in cells for name in cell.replace("`", "").split(", ")]


def test_every_documented_rule_has_an_example():
    assert sorted([*LINES, *RUNS, *TEXTS]) == sorted(documented("Rules"))


def test_unmodified_worlds_pass(worlds):
    unsound = {"empty", "slow", "latched", "altered"}
    assert {name: audit_run(worlds(name)).problems for name in WORLDS if name not in unsound} == dict.fromkeys(
        set(WORLDS) - unsound, ()
    )


@pytest.mark.parametrize("rule", LINES)
def test_modified_rows_violate_only_one_rule(worlds, rule):
    world, change = LINES[rule]
    report = audited_lines(worlds(world), change)
    assert set(report.counts) == {rule}, report.problems
    for violation in report.violations:
        json.dumps(violation.value)
        assert violation.text
        assert rule == "evaluator.leak" or violation.line == violation.row + 1  # a leak concerns the whole run


NO_CHUNK = dict.fromkeys(("id", "born", "age", "weight", "length"))
CROSSFADE = {"id": 1, "born": 2, "age": 1, "weight": 0.25, "older": [[0, 0, 0.75]]}


@pytest.mark.parametrize(
    ("world", "of_accounts", "rule", "changes"),
    [
        ("plain", chunked, "", {}),
        ("plain", chunked, "", {"mode": "theirs", "underruns": 7}),
        ("plain", chunked, "", {"mode": "crossfade", **CROSSFADE}),
        ("plain", chunked, "", {"earlier_prompt": {"instruction": "rest", "weight": 1.0}}),
        ("plain", chunked, "chunk.account", {"earlier_prompt": {"instruction": "rest", "weight": 0.0}}),
        (
            "plain",
            chunked,
            "chunk.account",
            {"earlier_prompt": {"instruction": "move the tool to the target", "weight": 1.0}},
        ),
        ("plain", chunked, "chunk.account", {"expired": -1}),
        ("plain", chunked, "chunk.account", {"older": None}),
        ("plain", chunked, "chunk.account", {"id": None}),
        ("plain", chunked, "chunk.account", {"length": None}),
        ("plain", chunked, "chunk.account", {**NO_CHUNK, "earlier_prompt": {"instruction": "rest", "weight": 1.0}}),
        ("plain", chunked, "chunk.weight", CROSSFADE),
        ("plain", chunked, "chunk.order", {"mode": "ensemble", "weight": 0.5, "older": [[1, 0, 0.5]]}),
        ("plain", chunked, "chunk.underrun", {**NO_CHUNK, "underruns": 1}),
        ("streamed", streamed, "", {}),
        ("streamed", streamed, "setpoints.account", {"rate_hz": 0.0}),
        ("streamed", streamed, "setpoints.account", {"sent": 1.0}),
        ("streamed", streamed, "setpoints.account", {"worst_gap_s": None}),
        ("streamed", streamed, "setpoints.account", {"more": 1}),
        ("plain", streamed, "setpoints.account", {}),  # no rate is declared
        ("gripper", gripping, "", {}),
        ("gripper", gripping, "", {"goal": 0.6, "goals_sent": 2, "state": "sent"}),
        ("gripper", gripping, "", {"goal": 0.6, "state": "unsent"}),
        ("gripper", gripping, "gripper.account", {"state": "idle"}),
        ("gripper", gripping, "gripper.account", {"goal": "wide"}),
        ("gripper", gripping, "gripper.account", {"goals_sent": -1}),
        ("gripper", gripping, "gripper.sent", {"goals_sent": 0}),
        ("gripper", gripping, "gripper.sent", {"goal": 0.6}),
        ("gripper", gripping, "gripper.sent", {"goal": 0.505, "goals_sent": 2}),
    ],
)
def test_account_of_a_step(worlds, world, of_accounts, rule, changes):
    report = audited_lines(worlds(world), of_accounts(4, **changes))
    assert set(report.counts) == ({rule} if rule else set()), report.problems
    assert not report.warnings


CHUNK = np.array([[0.1, np.nan], [0.2, 0.3]])


@pytest.mark.parametrize(
    ("is_sound", "account", "array", "requested"),
    [
        (True, {}, CHUNK, [0.1, None]),
        (True, {"age": 1}, CHUNK, [0.2, 0.3]),
        (True, {"weight": 0.5, "older": [[0, 0, 0.5]]}, CHUNK, [9.0, 9.0]),
        (True, {"id": 2}, None, [9.0, 9.0]),  # its actions are not recorded
        (False, {}, CHUNK, [0.1, 0.1]),
        (False, {"age": 2}, CHUNK, [0.2, 0.3]),
        (False, {"id": 2}, CHUNK, [0.1, None]),
        (False, {"length": 3}, CHUNK, [0.1, None]),
        (False, {}, CHUNK.astype(np.float32), [0.1, None]),
        (False, {}, CHUNK[0], [0.1, None]),
    ],
)
def test_actions_of_a_chunk(is_sound, account, array, requested):
    place = {"id": 1, "born": 3 - account.get("age", 0), "age": 0, "weight": 1.0, "length": 2, "older": [], **account}
    account = {"mode": "crossfade", **place, **dict.fromkeys(("underruns", "expired", "failed"), 0)}
    inputs = {} if array is None else {"chunk": {"id": 1, "born": account["born"], "actions": None}}
    inner = {"action": requested, "report": {"requested": requested}, "external_inputs": inputs}
    row: Any = {"schema": TRANSITION, "info": {"step_index": 4, "annotations": {"chunk": account}}, "inner": inner}
    found = {violation.rule for violation in AccountRules(None, lambda _: array).add(row)}
    assert found == (set() if is_sound else {"chunk.actions"})


def test_late_setpoints_are_one_warning(worlds):
    def change(rows):
        streamed(1, worst_gap_s=0.021)(rows)
        rows[2]["info"]["annotations"]["setpoints"]["worst_gap_s"] = 0.02
        rows[6]["info"]["annotations"]["setpoints"]["worst_gap_s"] = 0.03

    (warning,) = audited_lines(worlds("streamed"), change).warnings
    assert warning.rule == "setpoints.late"
    assert "sent late in 2 step(s): worst gap 30 ms (expected at most 20 ms, two periods of 100 Hz)" in warning.text


@pytest.mark.parametrize(
    "change",
    [
        lambda points: points.clear(),
        lambda points: points.pop(0),
        lambda points: points.append([9.0]),
        lambda points: points.append([value + 0.001 for value in points[-1]]),
    ],
)
def test_points_of_a_trajectory(worlds, change):
    report = audited_lines(worlds("following"), with_points(3, change))
    assert set(report.counts) == {"limits.trajectory"}, report.problems


@pytest.mark.parametrize("code", ["", "relay.silent"])
def test_the_speed_after_a_command_that_a_relay_did_not_report_is_unknown(code, worlds):
    world, exceed = LINES["limits.velocity"]

    def change(rows):
        exceed(rows)
        vectors = dict.fromkeys(("before", "after", "limit", "margin"))
        finding = {"gate": "relay", "severity": "HOLD", "code": code, "joints": [], **vectors, "detail": "no report"}
        rows[1]["inner"]["findings"] += [finding] if code else []

    assert ("limits.velocity" in audited_lines(worlds(world), change).counts) == (not code)


@pytest.mark.parametrize("rule", RUNS)
def test_modified_run_violates_only_one_rule(worlds, tmp_path, rule):
    world, of_rows, of_folder = RUNS[rule]
    path = Path(shutil.copytree(worlds(world), tmp_path / "run"))
    if of_rows is not None:
        rewrite(path, of_rows)
    if of_folder is not None:
        of_folder(path)
    report = audit_run(path, expected_head="0" * 64 if rule == "run.head" else None)
    assert set(report.counts) == {rule}, report.problems


@pytest.mark.parametrize("rule", TEXTS)
def test_modified_line_violates_only_one_rule(rule):
    report = audit_lines([json.dumps(PLAIN).encode(), TEXTS[rule]], path="rows")
    assert set(report.counts) == {rule}


# ---------------------------------------------------------------------------------------------------------------- warnings


def gap(rows):
    for row in rows[5:]:
        row["info"]["episode_index"] += 2


def in_place(rows):
    both_levels = {"info__reset__level": "none", "inner__level": "none"}
    at(rows[0], **both_levels, info__reset__solved=True, inner__verdict__success=True)


ODD = {
    "frame.frozen": ("seeing", unchanged),
    "episode.gap": ("plain", gap),
    "reset.solved_in_place": ("plain", in_place),
    "sensor.held": ("held", unchanged),
    "setpoints.late": ("streamed", streamed(1, worst_gap_s=0.021)),
}


def test_every_documented_warning_has_an_example():
    assert sorted([*ODD, "robot.overridden"]) == sorted(documented("Warnings"))


@pytest.mark.parametrize("rule", ODD)
def test_warning_is_reported_without_failing_the_audit(worlds, rule):
    world, change = ODD[rule]
    report = audited_lines(worlds(world), change)
    assert ({warning.rule for warning in report.warnings}, report.problems) == ({rule}, ())


# -------------------------------------------------------------------------------------------------------------- robot file

LIMIT = "actuators.arm.joints.j1.velocity"


def of_robot(**keys):
    source = RobotSource(name="some_arm", sha256="0" * 64, chosen={LIMIT: "no source"}, overridden=(LIMIT,))
    return dataclasses.replace(load_contract("arm_reach"), **{"robot": source, "override_robot_limits": True, **keys})


def audit_of(contract, folder, **values):
    path = record(folder, [[None]], contract)
    if values:
        manifest(**values)(path)
    return audit_run(path)


def test_overridden_limits_are_in_the_manifest_and_reported_as_a_warning(tmp_path):
    report = audit_of(of_robot(), tmp_path)
    assert report.problems == ()
    assert [(warning.rule, LIMIT in warning.text) for warning in report.warnings] == [("robot.overridden", True)]
    (path,) = tmp_path.iterdir()
    robot = json.loads((path / "manifest.json").read_text())["contract"]["robot"]
    assert (robot["overridden"], robot["unconfirmed"]) == ([LIMIT], {LIMIT: "no source"})


@pytest.mark.parametrize(
    ("contract", "values"),
    [
        (of_robot(override_robot_limits=False), {}),
        (of_robot(robot=RobotSource(name="a", sha256="0", overridden=("actuators.arm.joints.j9.velocity",))), {}),
        (of_robot(), {"contract__robot__overridden": []}),
        (of_robot(), {"contract__robot__unconfirmed": {}}),
    ],
    ids=["not allowed", "unknown limit", "hidden list", "hidden values"],
)
def test_an_impossible_record_of_the_robot_file_is_a_violation(tmp_path, contract, values):
    assert set(audit_of(contract, tmp_path, **values).counts) == {"manifest.robot"}


def test_a_run_on_a_robot_needs_confirmation_of_chosen_values():
    run: Any = {"contract": {"robot": describe_robot(of_robot())}, "backend": "real", "capabilities": {}}
    assert [violation.rule for violation in check_robot(run, of_robot())] == ["manifest.robot"]
    for flag in ({"chosen_confirmed": True}, {"emulated": True}, {"actuates": False}):
        assert list(check_robot({**run, "capabilities": flag}, of_robot())) == []
    assert list(check_robot({**run, "backend": "mujoco"}, of_robot())) == []


# ---------------------------------------------------------------------------------------------------------- other findings


@pytest.mark.parametrize(("steps", "is_sound"), [(2, True), (3, False), (None, False)])
def test_time_limit_truncates_at_the_step_in_the_manifest_only(tmp_path, steps, is_sound):
    path = record(tmp_path, [[np.zeros(6)] * 2], wrap=lambda env: TimeLimit(env, 2))
    manifest(wrappers__1__kwargs=None if steps is None else {"max_episode_steps": steps})(path)
    report = audit_run(path)
    assert set(report.counts) == (set() if is_sound else {"outside.truncated"})
    if not is_sound:
        (problem,) = report.problems
        arguments = "..." if steps is None else f"max_episode_steps={steps}"
        assert problem == (
            "row 2: truncated is True (expected False, as the environment returned); changed by an outer wrapper: "
            f"TimeLimit({arguments})"
        )
