"""Episodes solved at reset are excluded from success rates, and tasks may keep state for one episode."""

import json
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scripted_tasks
from gymnasium.vector import SyncVectorEnv
from run_files import rewrite_log
from scripted_tasks import Scene

import embodied_env
from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.cli.main import main
from embodied_env.contract import load_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.contract_schema import TaskSpec
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ResetNeededError, TaskError
from embodied_env.record import RecordTransitions, read_run

ARM = load_contract("arm_reach")
WIDE = replace(ARM, task=replace(ARM.task, parameters={**ARM.task.parameters, "success_radius_m": 5.0}))
DWELL = replace(
    ARM,
    task=TaskSpec(
        type="resettable_tasks:Dwell", parameters={"tip": "tcp", "goal": "target", "radius_m": 0.5, "steps": 3}
    ),
)


def small(task, **changes):
    return scripted_tasks.contract(task={"type": task}, **changes)


def record(folder, contract, *, resets, steps=1, backend="fake", **options):
    env = RecordTransitions(EmbodiedEnv(contract, backend=backend, **options), folder)
    env.action_space.seed(0)
    with env:
        for episode, asked in enumerate(resets):
            env.reset(seed=3 if episode == 0 else None, options=asked)
            for _ in range(steps):
                *_, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    break
    return env.path


def summary_of(path):
    return json.loads((path / "summary.json").read_text())


def rewrite(source, path, change):
    """Copy a run with other rows."""
    shutil.copytree(source, path)
    rows = list(read_run(path).rows())
    change(rows)
    rewrite_log(path, rows)
    return path


@pytest.mark.parametrize(
    ("task", "judged", "solved"),
    [
        ("resettable_tasks:Solved", True, True),
        ("scripted_tasks:Running", False, False),
        ("scripted_tasks:Succeeding", False, False),
        ("resettable_tasks:Undecided", False, False),
    ],
)
def test_info_reports_whether_the_reset_was_judged_and_solved(task, judged, solved):
    _, info = Scene(small(task)).reset()
    assert (info["reset"]["judged"], info["reset"]["solved"]) == (judged, solved)


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_the_flags_of_the_first_step_are_those_of_the_task(backend):
    env = EmbodiedEnv(WIDE, backend=backend)
    assert env.reset(seed=1)[1]["reset"]["solved"]
    *_, terminated, truncated, info = env.step(np.zeros(6))
    env.close()
    assert (terminated, truncated, info["end_reason"], info["is_success"]) == (True, False, "success", True)


class WithoutMotion(FakeBackend):
    """Its resets move nothing."""

    def reset(self, request, deadline_ns):
        snapshot = super().reset(request, deadline_ns)
        return replace(snapshot, reset=replace(snapshot.reset, level="none"))


@pytest.mark.parametrize(
    ("task", "backend", "warns"),
    [("Solved", WithoutMotion, True), ("Solved", FakeBackend, False), ("Undecided", WithoutMotion, False)],
)
def test_a_solved_task_after_a_reset_without_effect_warns(task, backend, warns, recwarn):
    Scene(small(f"resettable_tasks:{task}"), backend=backend).reset()
    assert any("solved before the first step" in str(warning.message) for warning in recwarn) is warns


def test_an_invalid_verdict_is_rejected_and_the_backend_halted():
    scene = Scene(small("resettable_tasks:Broken"))
    with pytest.raises(TaskError, match=r"py:\d+: reset returned True \(expected"):
        scene.reset()
    assert scene.backend.halted == ["reset failed"]
    with pytest.raises(ResetNeededError):
        scene.step()


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_episodes_solved_at_reset_have_no_success_rate(tmp_path, backend):
    summary = summary_of(record(tmp_path, WIDE, resets=[None] * 2, backend=backend))
    assert (summary["success_rate"], summary["success_rate_not_truncated"]) == (None, None)
    assert (summary["episodes"], summary["solved_at_reset"], summary["rated"], summary["successes"]) == (2, 2, 0, 0)
    assert summary["end_reasons"] == {"success": 2}


@pytest.mark.parametrize(
    ("task", "options", "steps", "expected"),
    [
        ({"type": "scripted_tasks:Succeeding"}, None, 1, (None, 0, 0, 1)),
        ({"type": "resettable_tasks:Undecided"}, None, 1, (None, 0, 0, 1)),
        ({"success_at": 2}, None, 2, (1.0, 1, 0, 0)),
        ({"type": "resettable_tasks:SolvedOnce"}, {"load": 0.5}, 1, (1.0, 1, 0, 0)),
    ],
    ids=["unjudged", "undecided", "later", "unsolved"],
)
def test_a_success_is_rated_after_an_unsolved_reset_or_after_the_first_step(tmp_path, task, options, steps, expected):
    summary = summary_of(record(tmp_path, scripted_tasks.contract(task=task), resets=[options], steps=steps))
    found = [summary[key] for key in ("success_rate", "rated", "solved_at_reset", "solved_at_first_step")]
    assert tuple(found) == expected


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Record four episodes that succeed at their first step, the first and third of which were solved at reset."""
    resets = [{"load": 2.0}, {"load": 0.5}, {"load": 2.0}, {"load": 0.5}]
    return record(tmp_path_factory.mktemp("runs"), small("resettable_tasks:SolvedOnce"), resets=resets)


@pytest.mark.needs("audit")
def test_the_audit_counts_solved_episodes_of_a_sound_run_only(mixed, tmp_path, capsys):
    from embodied_env.extensions.audit import audit_lines, audit_run

    summary, report = summary_of(mixed), audit_run(mixed)
    counts = [summary[key] for key in ("episodes", "solved_at_reset", "rated", "rated_terminated", "successes")]
    assert (counts, summary["success_rate"]) == ([4, 2, 2, 2, 2], 1.0)
    assert (report.problems, report.solved_at_reset, report.solved_at_first_step) == ((), 2, 0)
    assert main(["audit", str(mixed)]) == 0
    assert "solved at reset, before the policy acted: 2" in capsys.readouterr().out
    lines = [json.dumps(row).encode() for row in read_run(mixed).transitions()]
    assert audit_lines(lines, path="rows").solved_at_reset is None

    def damage(rows):
        del rows[3]["inner"]["report"]

    assert audit_run(rewrite(mixed, tmp_path / "damaged", damage)).solved_at_reset is None


@pytest.mark.needs("audit")
@pytest.mark.parametrize("changes", [{"success_rate": 1.0, "rated": 4}, {"successes": 4}, {"solved_at_reset": 0}])
def test_a_summary_with_solved_episodes_as_successes_fails_the_audit(mixed, tmp_path, changes):
    from embodied_env.extensions.audit import audit_run

    path = shutil.copytree(mixed, tmp_path / "run")
    (path / "summary.json").write_text(json.dumps({**summary_of(path), **changes}))
    assert set(audit_run(path).counts) == {"summary.differs"}


@pytest.mark.needs("audit", "report")
def test_the_report_excludes_solved_episodes_from_the_rate(mixed, tmp_path):
    pytest.importorskip("jinja2", reason="pages need jinja2, of the extra `report`")
    page = tmp_path / "report.html"
    assert main(["report", str(mixed), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "2 of 2 episodes" in text
    assert "solved at reset, before the policy acted: 2 (excluded from success rates)" in text
    assert "solved at reset or first step: in no rate" in text


@pytest.mark.needs("evaluation")
def test_evaluate_has_no_rate_of_100_percent_for_solved_episodes(tmp_path, capsys):
    file = tmp_path / "wide.yaml"
    file.write_text(dump_contract(WIDE))
    common = ["evaluate", str(file), "--backend", "fake", "--policy", "hold", "--episodes", "2", "--out"]
    assert main([*common, str(tmp_path / "a"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["runs"][0]["summary"]
    assert (summary["success_rate"], summary["solved_at_reset"]) == (None, 2)
    assert main([*common, str(tmp_path / "b")]) == 0
    rows = dict(line.strip("│").rsplit("│", 1) for line in capsys.readouterr().out.splitlines() if line.count("│") == 3)
    cells = {label.strip(): cell.strip() for label, cell in rows.items()}
    assert cells["success rate (truncated counted as failure)"] == cells["success rate (excluding truncated)"] == "n/a"
    assert cells["solved at reset (not rated)"] == "2"


def forged(path, row, **values):
    """Change the recorded results of a reset."""

    def change(rows):
        rows[row]["info"]["reset"] |= values

    return lambda source: rewrite(source, path / "forged", change)


@pytest.mark.needs("audit")
@pytest.mark.parametrize("values", [{"solved": False}, {"judged": False}])
def test_a_reset_whose_info_differs_from_its_verdict_fails_the_audit(mixed, tmp_path, values):
    from embodied_env.extensions.audit import audit_run

    assert set(audit_run(forged(tmp_path, 0, **values)(mixed)).counts) == {"reset.solved"}


@pytest.mark.needs("audit")
def test_an_episode_solved_without_an_effective_reset_warns(mixed, tmp_path):
    from embodied_env.extensions.audit import audit_run

    def change(rows):
        for row in rows[0], rows[2]:  # only the first is solved
            row["info"]["reset"]["level"] = row["inner"]["level"] = "none"

    report = audit_run(rewrite(mixed, tmp_path / "in_place", change))
    assert [(warning.rule, warning.row) for warning in report.warnings] == [("reset.solved_in_place", 0)]
    assert report.sound


def expected_reward(env):
    """Compute the reward of the last step of `Dwell` from the readings of the reset and the step."""
    errors = [
        seen.samples["target"].values["position"] - seen.samples["tcp"].values["position"]
        for seen in (env.last_reset, env.last_transition.snapshot)
    ]
    return float(np.linalg.norm(errors[1] - errors[0]))


def test_each_reset_resets_the_task_state(close_later):
    env = close_later(EmbodiedEnv(DWELL, backend="mujoco"))
    env.action_space.seed(1)
    for seed in (1, 2):
        env.reset(seed=seed)
        for _ in range(3):
            _, reward, *_ = env.step(env.action_space.sample())
            assert reward == expected_reward(env)


def near(radius_m):
    return replace(DWELL, task=replace(DWELL.task, parameters={**DWELL.task.parameters, "radius_m": radius_m}))


@pytest.mark.needs("vector")
def test_each_slot_of_a_vector_has_its_own_task_state():
    def slots(slot):
        return {"max_episode_steps": 3 + 2 * slot}

    options: dict = {"backend": "mujoco", "clock": "virtual"}
    vector = embodied_env.make_vec(DWELL, num_envs=2, per_slot=slots, **options)
    makers = [lambda slot=slot: embodied_env.make(DWELL, **options, **slots(slot)) for slot in range(2)]
    single = SyncVectorEnv(makers)
    vector.action_space.seed(0)
    for env in (vector, single):
        env.reset(seed=5)
    rewards = []
    for _ in range(9):
        actions = vector.action_space.sample()
        rewards.append([env.step(actions)[1].tolist() for env in (vector, single)])
    assert all(ours == theirs for ours, theirs in rewards)
    envs: Any = vector.envs
    assert len({id(env.unwrapped.stepper.task) for env in envs}) == 2
    for env in (vector, single):
        env.close()


@pytest.fixture(scope="module")
def dwelling(tmp_path_factory):
    """Record three episodes of six steps of a task with state, two of them with reset options."""
    resets = [{"target": [-0.5, 0.0, 0.3]}, None, {"target": [-0.4, 0.0, 0.2]}]
    return record(tmp_path_factory.mktemp("runs"), near(0.01), resets=resets, steps=6, backend="mujoco")


@pytest.mark.needs("replay")
def test_a_replay_rebuilds_the_state_of_each_episode_from_its_reset(dwelling):
    from embodied_env.extensions.replay.run_replay import replay_run

    rewards = [row["reward"] for row in read_run(dwelling).transitions()]
    assert len(set(rewards)) > 6
    replay = replay_run(dwelling, trust_task=True)
    assert (replay.difference, replay.transitions, replay.resets, replay.unverified) == (None, 18, 3, 0)
    assert replay.sound


@pytest.mark.needs("replay")
def test_a_replay_that_is_recorded_has_the_same_verdicts_and_options(dwelling, tmp_path):
    env = embodied_env.make(backend="replay", run=dwelling, record=tmp_path)
    for _ in range(3):
        env.reset()
    env.close()
    ours, theirs = (
        [(row["inner"]["options"], row["inner"]["verdict"]) for row in read_run(path).resets()]
        for path in (env.path, dwelling)
    )
    assert ours == theirs
    assert ours[0][0] == {"target": [-0.5, 0.0, 0.3]}


@pytest.mark.needs("replay")
@pytest.mark.parametrize("options", [{"backend": "mujoco"}, {"backend": "fake", "free_running": True}])
def test_a_replay_passes_the_recorded_reset_arguments_to_the_task(tmp_path, options):
    from embodied_env.extensions.replay.run_replay import replay_run

    contract = replace(ARM, task=TaskSpec(type="resettable_tasks:ArgumentVerdicts", parameters={}))
    replay = replay_run(
        record(tmp_path, contract, resets=[{"target": [-0.5, 0.0, 0.3]}, None], **options), trust_task=True
    )
    assert (replay.difference, replay.resets) == (None, 2)


def another_verdict(rows):
    rows[0]["inner"]["verdict"]["success"] = rows[0]["info"]["reset"]["solved"] = True


def no_options(rows):
    rows[0]["inner"]["options"] = {}


@pytest.mark.needs("replay")
@pytest.mark.parametrize(
    ("change", "difference"), [(another_verdict, (0, "inner.verdict.success")), (no_options, (1, "info.task.asked"))]
)
def test_a_verdict_or_options_changed_afterwards_differ(dwelling, tmp_path, change, difference):
    from embodied_env.extensions.replay.run_replay import replay_run

    found = replay_run(rewrite(dwelling, tmp_path / "forged", change), trust_task=True).difference
    assert (found.row, found.field) == difference


def without(*rows):
    """Return a change that removes these rows and keeps the numbers of the others."""

    def change(found):
        found[:] = [row for row in found if row["row"] not in rows]

    return change


@pytest.mark.needs("replay")
@pytest.mark.parametrize(
    ("lost", "verified", "unverified"),
    [
        ((7,), (6 + 6, 2), 6),  # the second reset: the whole episode
        ((0, 1), (6 + 6, 2), 5),  # the beginning
        ((13, 14), (6 + 5, 2), 6),  # the end of the second episode, and the third reset
    ],
)
def test_after_a_lost_row_nothing_is_verified_until_the_next_reset(
    dwelling, tmp_path, capsys, lost, verified, unverified
):
    from embodied_env.extensions.replay.run_replay import replay_run

    replay = replay_run(rewrite(dwelling, tmp_path / "lost", without(*lost)), trust_task=True)
    assert (replay.difference, (replay.transitions, replay.resets), replay.unverified) == (None, verified, unverified)
    assert not replay.sound
    assert main(["replay", str(tmp_path / "lost")]) == 1
    assert f"{unverified} rows were not compared" in capsys.readouterr().out
