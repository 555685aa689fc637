"""Comparison of two runs: known differences rank first, episodes are paired, and incomparable runs are rejected."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from row_logs import RowLog
from run_files import rewrite_log, seal
from shipped_contracts import changed_contract

from embodied_env.analysis.comparison.comparability import NotComparableError
from embodied_env.analysis.comparison.compare import compare_runs
from embodied_env.analysis.comparison.features import MOST_STREAMS, FeatureName, RunFeatures
from embodied_env.cli.main import main
from embodied_env.contract.fingerprint import differences
from embodied_env.contract.loader import dump_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.rows import RESET, TRANSITION

plotly_is_here = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None, reason="figures need plotly, of the extra `report`"
)


# ------------------------------------------------------------------------------------------------------ generated runs


def template(folder):
    """Return the manifest, the reset row and a transition row of a real run of the fake world."""
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), folder)
    env.reset(seed=1)
    env.step(np.zeros(6))
    env.close()
    reset, transition = read_run(env.path).rows()
    return json.loads((env.path / "manifest.json").read_text()), reset, transition


@pytest.fixture(scope="session")
def a_template(tmp_path_factory):
    return template(tmp_path_factory.mktemp("template"))


def unchanged(_row, _random, _episode):
    pass


def rows_of_a_run(made, *, seed=0, episodes=8, steps=5, change=unchanged):
    """Yield rows of a generated run: equal for equal seeds, except for the changes by `change`."""
    reset, transition = (json.dumps(row) for row in made[1:])
    random, number = np.random.default_rng(seed), 0
    for episode in range(episodes):
        row = json.loads(reset) | {"row": number}
        row["inner"]["seed_applied"] = 1000 + episode
        change(row, random, episode)
        yield row
        number += 1
        for step in range(steps):
            row = json.loads(transition) | {"row": number, "terminated": step == steps - 1}
            positions, velocities = random.normal(size=(2, 6)).tolist()
            for observation in (row["observation"], row["inner"]["observation"]):
                observation |= {"joints_position": list(positions), "joints_velocity": list(velocities)}
            row["inner"]["report"]["applied_si"] = [value + 0.001 * random.normal() for value in positions]
            row["info"]["latency"]["inference_s"] = float(random.uniform(0.001, 0.002))
            row["info"]["is_success"] = row["terminated"]
            row["info"]["end_reason"] = "success" if row["terminated"] else ""
            change(row, random, episode)
            yield row
            number += 1


def write_run(path, made, rows, **manifest):
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({**made[0], **manifest}))
    log = RowLog(path / "transitions.mcap")
    for row in rows:
        log.write("reset" if row["schema"] == RESET else "transition", row, log_time_ns=0)
    log.close()
    seal(path)
    return path


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory, a_template):
    return write_run(tmp_path_factory.mktemp("plain") / "a", a_template, rows_of_a_run(a_template))


@pytest.fixture
def run_of(tmp_path, a_template, plain_run):
    """Return a function that writes a run: ``run_of("a", seed=1, change=...)``, with changes to its `manifest`."""

    def make(name, *, manifest=None, **options):
        if not options and not manifest:
            return plain_run
        return write_run(tmp_path / name, a_template, rows_of_a_run(a_template, **options), **(manifest or {}))

    return make


def step_row(made, **fields):
    """Return the row of a step with other `fields`."""
    return json.loads(json.dumps(made[2])) | fields


def write_damaged(path):
    """Remove the seed from the first row of the run."""
    rewrite_log(path, [{**row, "seed": "none"} if row["schema"] == RESET else row for row in read_run(path).rows()])
    return path


def fake_run(folder, contract="arm_reach", wrap=lambda env: env):
    env = RecordTransitions(wrap(EmbodiedEnv(contract, backend="fake")), folder)
    env.reset(seed=1)
    env.step(env.action_space.sample())
    env.close()
    return env.path


def steps_only(change):
    def changed(row, random, _episode):
        if row["schema"] == TRANSITION:
            change(row, random)

    return changed


def slower(row, random):
    row["info"]["latency"]["inference_s"] += 0.05


def off(row, random):
    for observation in (row["observation"], row["inner"]["observation"]):
        observation["joints_position"][2] += 0.01


def elsewhere(row, random):
    row["observation"]["tcp_position"][0] = 9.0 + random.normal()


def stopped(row, random):
    finding = {"gate": "tracking", "severity": "HOLD", "code": "track.error", "joints": ["j3"], "detail": ""}
    finding |= dict.fromkeys(("before", "after", "limit", "margin"))
    row["inner"]["findings"] = [finding]


def stale(row, random):
    row["info"]["sensors"]["joints"]["quality"] = 1


# ------------------------------------------------------------------------------------------------------------- ranking


@pytest.mark.parametrize(
    ("change", "kind", "group", "component"),
    [
        (slower, "latency", "inference_s", ""),
        (off, "tracking", "position", "j3"),
        (elsewhere, "observation", "tcp_position", "[0]"),
        (stopped, "gate", "tracking", "track.error · j3"),
        (stale, "sensor", "joints", "STALE"),
    ],
)
def test_known_difference_is_ranked_first(run_of, change, kind, group, component):
    found = compare_runs(run_of("a", seed=1), run_of("b", seed=2, change=steps_only(change)))
    first = found.ranking[0].gap
    assert (first.name.kind, first.name.group, first.name.component) == (kind, group, component)
    assert first.is_more_than_chance
    assert first.distance > 0.9


def test_larger_difference_is_ranked_first(run_of):
    def both(row, random):
        slower(row, random)
        if random.random() < 0.5:
            stale(row, random)

    first, second = compare_runs(run_of("a"), run_of("b", seed=2, change=steps_only(both))).ranking[:2]
    assert [found.gap.name.kind for found in (first, second)] == ["latency", "sensor"]


def test_equal_runs_have_no_significant_difference(run_of):
    for seed in range(3):
        found = compare_runs(run_of(f"a{seed}", seed=seed), run_of(f"b{seed}", seed=100 + seed))
        assert [ranked.gap.name for ranked in found.ranking if ranked.gap.is_more_than_chance] == []


def test_run_compared_with_itself_has_no_difference(run_of):
    a = run_of("a")
    found = compare_runs(a, a)
    assert found.ranking == ()
    assert {gap.distance for gap in found.gaps} == {0.0}


def test_comparison_is_reproducible_and_symmetric(run_of):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(off))
    there, again, back = compare_runs(a, b), compare_runs(a, b), compare_runs(b, a)
    assert there.as_json() == again.as_json()
    assert {(gap.name, gap.distance) for gap in there.gaps} == {(gap.name, gap.distance) for gap in back.gaps}


def test_one_sided_feature_is_reported_and_not_ranked(run_of):
    def transport(row, random):
        row["info"]["latency"]["transport_s"] = {"joints": 0.001}
        row["info"]["latency"]["quality"]["transport_s"] = {"joints": 0}

    found = compare_runs(run_of("a"), run_of("b", change=steps_only(transport)))
    (lone,) = found.one_sided
    assert (lone.name.group, lone.name.component, lone.run, lone.count) == ("transport_s", "joints", "B", 40)
    assert not any(gap.name.group == "transport_s" for gap in found.gaps)


def test_unmeasured_stage_is_not_compared(run_of):
    def unmarked(row, random):
        row["info"]["latency"] |= {"inference_s": 5.0}
        row["info"]["latency"]["quality"]["inference_s"] = 9

    found = compare_runs(run_of("a"), run_of("b", change=steps_only(unmarked)))
    assert [lone.run for lone in found.one_sided if lone.name.group == "inference_s"] == ["A"]


def test_held_reading_is_not_tracked(run_of):
    def held(row, random):
        off(row, random)
        stale(row, random)

    found = compare_runs(run_of("a"), run_of("b", change=steps_only(held)))
    assert found.of("tracking") == []


# -------------------------------------------------------------------------------------------------------------- outcome


def failing(*episodes, reason="failure:fell"):
    def change(row, random, episode):
        if row["schema"] == TRANSITION and row["terminated"] and episode in episodes:
            row["info"] |= {"is_success": False, "end_reason": reason}

    return change


def cut_short(*episodes):
    def change(row, random, episode):
        if row["schema"] == TRANSITION and row["terminated"] and episode in episodes:
            row |= {"terminated": False, "truncated": True}
            row["info"] |= {"is_success": False, "end_reason": "time_limit"}

    return change


def test_both_success_rates_have_intervals(run_of):
    counted, apart = compare_runs(run_of("a"), run_of("b", change=cut_short(0, 1))).outcomes
    assert (counted.b.successes, counted.b.trials, apart.b.successes, apart.b.trials) == (6, 8, 6, 6)
    assert (counted.b.low, counted.b.high) == pytest.approx((0.4093, 0.9285), abs=5e-4)
    assert counted.difference == pytest.approx((-0.5907, 0.1203), abs=5e-4)


def test_episodes_of_the_same_seed_are_paired(run_of):
    found = compare_runs(run_of("a", change=failing(0)), run_of("b", change=failing(0, 1, 2, 3, 4, 5)))
    test = found.outcomes[0].paired
    assert (test.pairs, test.both, test.only_a, test.only_b, test.neither) == (8, 2, 5, 0, 1)
    assert test.p_value == 0.0625


def test_truncated_pairs_are_excluded_where_truncation_is(run_of):
    counted, apart = compare_runs(run_of("a"), run_of("b", change=cut_short(0, 1))).outcomes
    assert (counted.paired.pairs, apart.paired.pairs) == (8, 6)


def reseeded(row, random, episode):
    if row["schema"] == RESET:
        row["inner"]["seed_applied"] = 5000 + episode


def unseeded(row, random, episode):
    if row["schema"] == RESET:
        row["inner"]["seed_applied"] = None


def given_options(row, random, episode):
    if row["schema"] == RESET:
        row["options"] = {"target": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (reseeded, "the seeds of the two runs do not match"),
        (given_options, "the seeds of the two runs do not match"),
        (unseeded, "the resets of run B have no seed"),
    ],
)
def test_no_paired_test_without_matching_seeds(run_of, change, problem):
    found = compare_runs(run_of("a"), run_of("b", change=change))
    assert found.pairing.problem == problem
    assert found.outcomes[0].paired is None


def test_repeated_seed_is_paired_in_order(run_of):
    def one_seed(row, random, episode):
        if row["schema"] == RESET:
            row["inner"]["seed_applied"] = 7

    def one_seed_failing(row, random, episode):
        one_seed(row, random, episode)
        failing(0)(row, random, episode)

    found = compare_runs(run_of("a", change=one_seed), run_of("b", episodes=5, change=one_seed_failing))
    assert (len(found.pairing.pairs), found.pairing.only_a, found.pairing.only_b) == (5, 3, 0)
    assert (found.outcomes[0].paired.only_a, found.outcomes[0].paired.both) == (1, 4)


def test_different_samples_from_one_seed_are_reported(run_of):
    def drawn(row, random, episode):
        if row["schema"] == RESET and episode < 3:
            row["inner"]["sampled"] = {"target": [9.0, 9.0, 9.0]}

    assert compare_runs(run_of("a"), run_of("b", change=drawn)).pairing.drawn_apart == 3


# --------------------------------------------------------------------------------------------------- incomparable runs


def altered(made, path, value):
    contract = changed_contract("arm_reach", {path: value})
    recorded = {**made[0]["contract"], "text": dump_contract(contract), "fingerprint": contract.fingerprint}
    return {"contract": recorded}


MARGIN = ("safety.margins.velocity", 0.9)


def test_different_contracts_are_rejected_with_path_and_values(run_of, a_template):
    b = run_of("b", manifest=altered(a_template, *MARGIN))
    with pytest.raises(NotComparableError, match=r"safety\.margins\.velocity") as refusal:
        compare_runs(run_of("a"), b)
    (found,) = refusal.value.mismatches
    assert (found.path, found.a, found.b) == ("safety.margins.velocity", 0.95, 0.9)


@pytest.mark.parametrize("path", ["safety.margins.velocity", "safety.margins", "safety"])
def test_difference_is_ignored_by_its_path_or_a_parent(run_of, a_template, path):
    b = run_of("b", manifest=altered(a_template, *MARGIN))
    found = compare_runs(run_of("a"), b, ignore=[path])
    assert [mismatch.path for mismatch in found.terms.ignored] == ["safety.margins.velocity"]


@pytest.mark.parametrize("path", ["safety.margins.vel", "safet", "", "margins.velocity"])
def test_similar_path_ignores_nothing(run_of, a_template, path):
    with pytest.raises(NotComparableError):
        compare_runs(run_of("a"), run_of("b", manifest=altered(a_template, *MARGIN)), ignore=[path])


def test_joints_are_tracked_by_the_contract_of_their_own_run(run_of, a_template):
    """Run B declares its joints in reverse order, also in its readings and commands."""
    b = altered(a_template, "sensors.joints.fields.position.joints", ["j6", "j5", "j4", "j3", "j2", "j1"])

    def turned(row, random):
        row["inner"]["observation"]["joints_position"].reverse()

    found = compare_runs(run_of("a"), run_of("b", manifest=b, change=steps_only(turned)), ignore=["sensors"])
    assert [gap.distance for gap in found.of("tracking")] == [0.0] * 6


def test_topics_and_backends_may_differ(run_of, a_template):
    manifest = altered(a_template, "sensors.joints.topic", "robot/joint_states") | {"backend": "real"}
    b = run_of("b", manifest=manifest)
    assert compare_runs(run_of("a"), b).terms.ignored == ()


def test_unexplained_fingerprint_difference_is_rejected(run_of, a_template):
    contract = {**a_template[0]["contract"], "fingerprint": "0" * 64}
    with pytest.raises(NotComparableError, match=r"contract\.fingerprint"):
        compare_runs(run_of("a"), run_of("b", manifest={"contract": contract}))


@pytest.mark.parametrize("contract", [None, {}, {"text": 5, "fingerprint": "x"}, {"text": "contract: nonsense"}])
def test_unknown_contracts_are_rejected(run_of, contract):
    with pytest.raises(RecordError, match=r"manifest\.json: contract"):
        compare_runs(run_of("a", manifest={"contract": contract}), run_of("b", manifest={"contract": contract}))


def test_equal_fingerprints_of_an_unreadable_contract_are_compared_with_a_note(run_of, a_template):
    manifest = {"contract": {**a_template[0]["contract"], "text": "task: {type: elsewhere}"}}
    found = compare_runs(run_of("a", manifest=manifest), run_of("b", manifest=manifest))
    assert found.of("tracking") == []
    assert "cannot be loaded" in found.terms.notes[0]


def layers(*classes, **kwargs):
    return {"wrappers": [{"class": name, "kwargs": kwargs.get(name)} for name in classes]}


RECORDER, ENV = "embodied_env.record.recorder:RecordTransitions", "embodied_env.envs.embodied_env:EmbodiedEnv"


def test_different_wrappers_are_rejected(tmp_path):
    a, b = fake_run(tmp_path / "a"), fake_run(tmp_path / "b", wrap=lambda env: TimeLimit(env, 7))
    with pytest.raises(NotComparableError) as refusal:
        compare_runs(a, b)
    (found,) = refusal.value.mismatches
    assert found.path == "wrappers"
    assert "gymnasium.wrappers.common:TimeLimit" in found.b
    assert compare_runs(a, b, ignore=["wrappers"]).terms.ignored == (found,)


def test_different_wrapper_argument_is_rejected_with_its_path(tmp_path):
    a, b = (fake_run(tmp_path / str(n), wrap=lambda env, n=n: TimeLimit(env, n)) for n in (7, 8))
    with pytest.raises(NotComparableError) as refusal:
        compare_runs(a, b)
    assert [(m.path, m.a, m.b) for m in refusal.value.mismatches] == [("wrappers[1].kwargs.max_episode_steps", 7, 8)]


def test_recorder_folder_and_backend_options_may_differ(run_of):
    a = layers(RECORDER, ENV, **{RECORDER: {"folder": "x", "policy": "p"}, ENV: {"backend": "mujoco"}})
    b = layers(RECORDER, ENV, **{RECORDER: {"folder": "y", "policy": "q"}, ENV: {"backend": "real"}})
    assert compare_runs(run_of("a", manifest=a), run_of("b", manifest=b)).terms.ignored == ()


def test_wrapper_without_recorded_arguments_is_noted(run_of):
    manifest = layers(RECORDER, "some:Wrapper", ENV)
    found = compare_runs(run_of("a", manifest=manifest), run_of("b", manifest=manifest))
    assert found.terms.notes == ("some:Wrapper does not record its arguments, so they may differ.",)


def test_manifests_without_wrappers_are_rejected(run_of):
    with pytest.raises(RecordError, match=r"manifest\.json: wrappers"):
        compare_runs(run_of("a", manifest={"wrappers": None}), run_of("b", manifest={"wrappers": None}))


def test_dry_run_and_armed_run_are_not_comparable(run_of):
    dry = {"capabilities": {"actuates": False}}
    with pytest.raises(NotComparableError) as refusal:
        compare_runs(run_of("armed"), run_of("dry", manifest=dry))
    assert [(found.path, found.a, found.b) for found in refusal.value.mismatches] == [
        ("capabilities.actuates", True, False)
    ]


def test_mismatch_paths_are_those_of_the_contract():
    assert differences({"a": {"b": 1}}, {"a": {"b": 2}}) == [("a.b", 1, 2)]


# --------------------------------------------------------------------------------------------- damaged and hostile runs


def test_unclean_run_is_compared_and_reported(run_of):
    found = compare_runs(run_of("a"), run_of("b", manifest={"clean": False}))
    assert not found.sound
    assert found.b.run.problem == "manifest.json: the run was never closed"
    assert found.gaps


@pytest.mark.parametrize("episodes", [0, 1])
def test_run_without_episodes_is_compared(run_of, episodes):
    def endless(row, random, episode):
        if row["schema"] == TRANSITION:
            row["terminated"] = False

    found = compare_runs(run_of("a"), run_of("b", episodes=episodes, change=endless))
    assert found.b.summary["episodes"] == 0
    assert found.outcomes[0].difference is None
    assert found.pairing.problem == "no episode of run B ended"


def test_invalid_row_is_rejected(run_of):
    with pytest.raises(RecordError, match="row 0 is invalid"):
        compare_runs(run_of("a"), write_damaged(run_of("b", seed=1)))


def test_steps_added_by_an_outer_wrapper_count_in_the_outcome_only(a_template):
    features = RunFeatures(None)
    for row in rows_of_a_run(a_template, episodes=1, steps=3):
        features.add(row if row["schema"] == RESET else row | {"inner": None, "info": {"anything": 1}})
    assert (features.steps, features.outcomes.summary()["episodes"]) == (3, 1)
    assert {name.kind for name in features.streams} == {"outcome"}
    assert not features.events


@pytest.mark.parametrize("observation", [None, 3.5, [1, None, "x"], {"a": {"b": [[1.0], [2.0, 3.0]]}, "c": "text"}])
def test_observation_may_be_any_json(a_template, observation):
    features = RunFeatures(None)
    features.add(step_row(a_template, observation=observation))
    assert features.steps == 1


def test_excess_names_are_omitted_and_counted(a_template):
    features = RunFeatures(None)
    for number in range(3):
        observation = {f"field_{number}_{index}": 1.0 for index in range(1000)}
        features.add(step_row(a_template, observation=observation))
    assert len(features.streams) == MOST_STREAMS
    assert features.left_out > 1000


def test_large_field_is_one_stream(run_of):
    def scanning(row, random):
        row["observation"]["scan"] = random.uniform(0, 8, size=500).tolist()

    def blind(row, random):
        row["observation"]["scan"] = [8.0] * 500

    found = compare_runs(run_of("a", change=steps_only(scanning)), run_of("b", change=steps_only(blind)))
    gap = next(gap for gap in found.gaps if gap.name.group == "scan")
    assert (gap.name.component, gap.distance) == ("all together", 1.0)
    assert gap.a.effective_count <= 40


def test_images_are_compared_by_their_means(a_template):
    def features_of(brightness):
        features = RunFeatures(None)
        for step in range(40):
            reference = {"sha256": f"{brightness}-{step}", "dtype": "uint8", "shape": [2, 2, 3]}
            features.add(step_row(a_template, observation={"front_image": reference}))
        features.read_arrays(lambda found: np.full((2, 2, 3), int(found["sha256"].split("-")[0]), dtype=np.uint8))
        return features.streams[FeatureName(kind="observation", group="front_image", component="mean of each array")]

    dark, bright = features_of(10).numbers(), features_of(200).numbers()
    assert (dark.mean, bright.mean, dark.count) == (10.0, 200.0, 40)


def test_images_are_sampled_evenly(a_template):
    features, looked = RunFeatures(None), []
    for step in range(3000):
        reference = {"sha256": str(step), "dtype": "uint8", "shape": [2, 2, 3]}
        features.add(step_row(a_template, observation={"front_image": reference}))
    features.read_arrays(lambda found: looked.append(int(found["sha256"])) or np.zeros((2, 2, 3)))
    assert 100 < len(looked) < 300
    assert set(np.diff(looked)) == {16}


# ------------------------------------------------------------------------------------------------------- command line


def test_compare_rejects_with_status_1_and_lists_the_differences(run_of, a_template, capsys, tmp_path):
    a, b = run_of("a"), run_of("b", manifest=altered(a_template, *MARGIN))
    page = tmp_path / "page.html"
    assert main(["compare", str(a), str(b), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "refused": True,
        "differences": [{"path": "safety.margins.velocity", "a": 0.95, "b": 0.9}],
    }
    assert not page.exists()


def test_json_output_writes_no_page_and_names_unused_ignores(run_of, capsys):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(slower))
    assert main(["compare", str(a), str(b), "--json", "--ignore", "safety"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["ranking"][0]["group"] == "inference_s"
    assert found["ignored_without_effect"] == ["safety"]
    assert output.err == "--ignore safety has no effect: the runs do not differ there\n"


def test_compare_has_status_1_for_an_unclean_run(run_of, capsys):
    a, b = run_of("a"), run_of("b", manifest={"clean": False})
    assert main(["compare", str(a), str(b), "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["sound"] is False
    assert output.err == f"not sound: {b}: manifest.json: the run was never closed\n"


def test_missing_directory_is_a_usage_error(run_of, tmp_path, capsys):
    assert main(["compare", str(run_of("a")), str(tmp_path / "nowhere")]) == 2
    err = capsys.readouterr().err
    assert "no such run directory: " in err
    assert "nowhere" in err


@plotly_is_here
def test_page_starts_with_the_largest_difference_and_loads_nothing(run_of, tmp_path, capsys):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(slower), manifest={"backend": "<b>real</b>"})
    page = tmp_path / "compare.html"
    assert main(["compare", str(a), str(b), "-o", str(page)]) == 0
    made = page.read_text()
    body = made[made.index("<main>") :]
    assert "latency · inference" in body[body.index("Largest differences") :][:1500]
    assert "McNemar" in body
    assert "<b>real</b>" not in body
    assert 'src="http' not in made
    assert "latency · inference" in capsys.readouterr().out


@plotly_is_here
def test_page_of_empty_runs_names_the_problems(run_of, tmp_path, capsys):
    a, b = run_of("a", episodes=0), run_of("b", episodes=0, manifest={"clean": False, "policy": "other"})
    page = tmp_path / "compare.html"
    assert main(["compare", str(a), str(b), "-o", str(page)]) == 1
    made = page.read_text()
    assert "Run A has no step, and" not in made
    for sentence in (
        "Run A has no step",
        "Not sound evidence",
        "the run was never closed",
        "No paired test",
        "The policies differ",
    ):
        assert sentence in made


@plotly_is_here
def test_page_shows_ignored_differences(run_of, a_template, tmp_path):
    a, b = run_of("a"), run_of("b", manifest=altered(a_template, *MARGIN))
    page = tmp_path / "compare.html"
    assert main(["compare", str(a), str(b), "-o", str(page), "--ignore", "safety", "--ignore", "task"]) == 0
    made = page.read_text()
    assert "safety.margins.velocity" in made
    assert "--ignore task: it does not differ" in made


# --------------------------------------------------------------------------------------------------------------- memory


def test_memory_per_name_is_bounded(a_template):
    features = RunFeatures(None)
    for row in rows_of_a_run(a_template, episodes=4, steps=200):
        features.add(row)
    assert all(len(stream.values()) <= 8192 for stream in features.streams.values())
    assert len(features.streams) < 60


def peak_mb_of_comparing(a, b):
    """Return the output of the command line, and the peak memory of all child processes so far."""
    command = [sys.executable, "-m", "embodied_env.cli", "compare", str(a), str(b), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


@pytest.mark.long
def test_memory_does_not_grow_from_20000_to_100000_rows(a_template, tmp_path):
    """Compare the resident memory for two runs of 20 000 and of 100 000 transitions."""

    def written(name, episodes, **options):
        rows = rows_of_a_run(a_template, episodes=episodes, steps=200, **options)
        return write_run(tmp_path / name, a_template, rows)

    _, short_mb = peak_mb_of_comparing(written("a", 100, seed=1), written("b", 100, seed=2))
    a, b = written("c", 500, seed=1), written("d", 500, seed=2, change=steps_only(slower))
    began = time.monotonic()
    found, long_mb = peak_mb_of_comparing(a, b)
    seconds = time.monotonic() - began
    print(f"peak {short_mb:.0f} MB of 2 x 20 000, {long_mb:.0f} MB of 2 x 100 000 transitions, in {seconds:.0f} s")
    assert (found["a"]["steps"], found["b"]["steps"]) == (100_000, 100_000)
    assert found["ranking"][0]["group"] == "inference_s"
    assert long_mb < short_mb + 30
