"""Known differences of runs rank first, episodes are paired, and incomparable runs are rejected."""

import json
import subprocess
import sys

import numpy as np
import pytest
from delay_models import constant
from gymnasium.wrappers import TimeLimit
from run_files import rewrite_log
from shipped_contracts import changed_contract, changed_text

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.comparison.comparability import NotComparableError
from embodied_env.extensions.comparison.comparison_page import name_of_side, overlays, write_comparison
from embodied_env.extensions.comparison.run_comparison import compare_runs, comparisons_as_json
from embodied_env.extensions.comparison.run_features import MOST_STREAMS, FeatureName, RunFeatures
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.timing.delay_model import DelayModel

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


def rows_of_a_run(made, *, seed=0, episodes=8, steps=2, change=unchanged):
    """Yield rows of a generated run, which are equal for equal seeds, except for the changes by `change`."""
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
            names = row["info"]["action"]["applied_si"]
            row["info"]["action"]["applied_si"] = {
                name: value + 0.001 * random.normal() for name, value in zip(names, positions, strict=True)
            }
            row["info"]["latency"]["inference_s"] = float(random.uniform(0.001, 0.002))
            row["info"]["is_success"] = row["terminated"]
            row["info"]["end_reason"] = "success" if row["terminated"] else ""
            change(row, random, episode)
            yield row
            number += 1


def write_run(path, made, rows, **manifest):
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({**made[0], **manifest}))
    rewrite_log(path, rows)
    return path


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory, a_template):
    return write_run(tmp_path_factory.mktemp("plain") / "a", a_template, rows_of_a_run(a_template))


@pytest.fixture
def run_of(tmp_path, a_template, plain_run):
    """Return a function that writes a run, with changes to its rows and its `manifest`."""

    def make(name, *, manifest=None, **options):
        if not options and not manifest:
            return plain_run
        return write_run(tmp_path / name, a_template, rows_of_a_run(a_template, **options), **(manifest or {}))

    return make


def step_row(made, **fields):
    return made[2] | fields


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


def seeded_run(folder, seeds, unstepped=()):
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake", clock="virtual"), folder)
    for seed in seeds:
        env.reset(seed=seed)
        for step in range(0 if seed in unstepped else 12):
            env.step(np.full(6, np.sin(seed + step)))
    env.close()
    return env.path


def test_overlaid_episodes_have_equal_seeds_though_one_has_no_step(tmp_path):
    first, other = seeded_run(tmp_path / "a", [9, 1, 2], unstepped=[9]), seeded_run(tmp_path / "b", [1, 2])
    comparison = compare_runs(first, other)
    assert comparison.pairing.indices == ((1, 0), (2, 1))
    drawn = [[side.features.drawn[index] for side, index in zip((comparison.a, comparison.b), pair, strict=True)]
             for pair in comparison.pairing.indices]  # fmt: skip
    for in_a, in_b in drawn:
        assert all(np.array_equal(a.commands, b.commands) for a, b in zip(in_a, in_b, strict=True))
    page = "".join(overlays(comparison))
    assert "episode 2 and 1" in page
    assert "episode 3 and 2" in page


def steps_only(change):
    def changed(row, random, _episode):
        if row["schema"] == TRANSITION:
            change(row, random)

    return changed


def slower(row, random):
    row["info"]["latency"]["inference_s"] += 0.05


def off(row, random):
    for observation in (row["observation"], row["inner"]["observation"]):
        observation["joints_position"][2] += 0.1


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
    first = found.differences[0]
    assert (first.name.kind, first.name.group, first.name.component) == (kind, group, component)
    assert first.verdict == "differs"
    assert found.findings[0].startswith("B differs from A most in ")


def test_tiny_difference_in_every_step_does_not_matter(run_of):
    def hardly_slower(row, random):
        row["info"]["latency"]["inference_s"] += 2e-4  # 0.4 % of the period

    found = compare_runs(run_of("a"), run_of("b", change=steps_only(hardly_slower)))
    (slower,) = (one for one in found.differences if one.name.group == "inference_s")
    assert slower.p_value < 1e-9
    assert (slower.verdict, slower.may_matter) == ("same", False)
    assert found.findings[0].startswith("No difference that matters was found")


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_runs_have_no_significant_difference(run_of, seed):
    found = compare_runs(run_of("a", seed=seed), run_of("b", seed=100 + seed))
    assert [one.name for one in found.differences if one.verdict == "differs"] == []


def test_run_compared_with_itself_has_no_difference(run_of):
    a = run_of("a")
    found = compare_runs(a, a)
    assert {one.difference for one in found.differences} == {0.0}
    assert {one.verdict for one in found.differences if one.name.group != "success"} == {"same"}
    success = next(one for one in found.differences if one.name.group == "success")
    assert (success.verdict, success.pairs, success.episodes_needed) == ("undecided", 8, 96)
    assert "8 episodes of each run are too few; about 96 would show a difference of 10.0 points" in found.findings[0]


def test_comparison_is_reproducible_and_antisymmetric(run_of):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(off))
    there, again, back = compare_runs(a, b), compare_runs(a, b), compare_runs(b, a)
    assert comparisons_as_json([there]) == comparisons_as_json([again])
    assert {(one.name, one.difference, one.p_value) for one in there.differences} == {
        (one.name, -one.difference, one.p_value) for one in back.differences
    }


@pytest.mark.parametrize(("episodes", "count"), [(2, "2 episodes of each run are"), (1, "1 episode of each run is")])
def test_difference_in_few_episodes_is_probable(run_of, episodes, count):
    """An error in every step of the run is neither hidden nor certain."""
    a, b = run_of("a", episodes=episodes), run_of("b", episodes=episodes, change=steps_only(off))
    found = compare_runs(a, b)
    first = found.differences[0]
    assert (first.name.kind, first.name.component, first.verdict) == ("tracking", "j3", "probably")
    assert found.findings[0].startswith("B probably differs from A most in tracking error of j3: ")
    assert f"{count} too few" in found.findings[0]
    assert (first.episodes_needed is None) == (episodes == 1)


def test_only_episodes_count_and_not_their_steps(run_of):
    """A state of a whole episode is one observation, however long the episode is."""

    def drifting(row, random, episode):
        if row["schema"] == TRANSITION:
            row["observation"]["tcp_position"][0] = 0.1 * np.random.default_rng(episode).normal()

    def drifting_elsewhere(row, random, episode):
        drifting(row, random, episode + 50)

    found = compare_runs(
        run_of("a", steps=20, episodes=4, change=drifting), run_of("b", steps=20, episodes=4, change=drifting_elsewhere)
    )
    (moved,) = (one for one in found.differences if (one.name.group, one.name.component) == ("tcp_position", "[0]"))
    assert (moved.a.episodes, moved.b.episodes) == (4, 4)
    assert moved.verdict != "differs"


def transport(row, random):
    row["info"]["latency"]["transport_s"] = {"joints": 0.001}
    row["info"]["latency"]["quality"]["transport_s"] = {"joints": 0}


def test_one_sided_feature_is_reported_and_not_compared(run_of):
    real = {"pacing": "realtime"}
    found = compare_runs(run_of("a", manifest=real), run_of("b", manifest=real, change=steps_only(transport)))
    (lone,) = found.one_sided
    assert (lone.name.group, lone.name.component, lone.run) == ("transport_s", "joints", "B")
    assert not any(one.name.group == "transport_s" for one in found.differences)


@pytest.mark.parametrize(
    ("pacings", "compared", "reason"),
    [
        (("lockstep", "lockstep"), {"inference_s"}, "both worlds wait"),
        (("realtime", "realtime"), {"inference_s", "handoff_s", "world_s", "gate_s", "obs_to_command_s"}, ""),
        (
            ("realtime", "lockstep"),
            set(),
            "the world of B waits for the agent (lockstep), that of A does not (realtime)",
        ),
    ],
)
def test_stages_that_pacing_makes_incomparable_are_excluded_by_name(run_of, pacings, compared, reason):
    a, b = (run_of(name, manifest={"pacing": pacing}) for name, pacing in zip("ab", pacings, strict=True))
    found = compare_runs(a, b)
    stages = {"inference_s", "handoff_s", "world_s", "gate_s", "obs_to_command_s"}
    assert {one.name.group for one in found.differences} & stages == compared
    excluded = {stage for one in found.excluded for stage in one.stages}
    assert excluded & stages == stages - compared
    assert "capture_age_s" in {one.name.group for one in found.differences}
    assert all(one.reason.startswith(reason) for one in found.excluded)


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
    assert not any(one.name.kind == "tracking" for one in found.differences)


def test_run_without_measured_positions_is_compared(run_of, tmp_path):
    def unmeasured(row, random):
        for observation in (row["observation"], row["inner"]["observation"]):
            observation["joints_position"] = None

    found = compare_runs(run_of("a"), run_of("b", change=steps_only(unmeasured)))
    assert found.untracked == ("j1", "j2", "j3", "j4", "j5", "j6")
    assert "Run B has no reading of j1, j2, j3, j4, j5, j6: neither tracking error nor response." in found.warnings
    assert not any(one.name.kind == "tracking" for one in found.differences)
    write_comparison([found], tmp_path / "page.html")
    assert "neither tracking error nor response" in (tmp_path / "page.html").read_text()


# ----------------------------------------------------------------------------------------- delays and gains of a robot


WEAK = {"j2": {"stiffness": 500, "damping": 100}}


def assert_delay_and_gain_are_named(found):
    groups = [(one.name.group, one.name.component) for one in found.differences if one.may_matter]
    first = list(dict.fromkeys(groups))[:8]
    assert first[0] == ("response delay", "j2")
    assert {("position", "j2"), ("gain", "j2")} <= set(first)
    named = " ".join(found.findings[:2])
    assert all(name in named for name in ("response delay of j2", "tracking error of j2", "gain of j2"))
    others = [one for one in found.differences if one.name.group == "response delay" and one.name.component != "j2"]
    assert [one.difference for one in others if one.a.episodes > 3] == pytest.approx([0.06] * 4, abs=0.015)


@pytest.mark.needs("evaluation")
def test_hidden_delay_and_weak_servo_are_named_first(tmp_path):
    """The delay is in the world of run B only, and a weak servo of j2 adds to it, while success remains the same."""
    weak = changed_contract("arm_reach", {"backends.mujoco.servo_gains": WEAK})
    late = DelayModel(
        sensors=dict.fromkeys(("joints", "tcp", "target"), constant(0.0)),
        inference=constant(0.0),
        actuation=constant(0.06),
    )
    options: dict = {"backend": "mujoco", "episodes": 5, "seed": 0}
    a = embodied_env.evaluate("arm_reach", ["scripted"], record=tmp_path / "a", **options)
    b = embodied_env.evaluate(weak, ["scripted"], record=tmp_path / "b", delay_profile=late, **options)
    found = compare_runs(a.results[0].path, b.results[0].path)
    assert_delay_and_gain_are_named(found)
    write_comparison([found], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.index("response delay of j2") < page.index("Outcome")
    assert page.count("measured in B") >= 4  # in the drawings of two joints in two pairs


@pytest.mark.needs("evaluation")
@pytest.mark.long
def test_hidden_delay_and_weak_servo_of_an_emulated_robot_are_named_first(tmp_path, domain_id):
    robot = tmp_path / "robot.yaml"
    robot.write_text(changed_text("arm_reach", {"backends.mujoco_ros.servo_gains": WEAK}))
    command = [sys.executable, "-m", "embodied_env.cli", "sim", str(robot), "--free-running"]
    command += ["--emulator-settings", '{"command_delay_s": 0.06}']
    emulator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "simulating" in emulator.stdout.readline()
        options: dict = {"episodes": 8, "seed": 0}
        a = embodied_env.evaluate("arm_reach", ["scripted"], backend="mujoco", record=tmp_path / "a", **options)
        b = embodied_env.evaluate(
            "arm_reach", ["scripted"], backend="real", emulator=True, record=tmp_path / "b", **options
        )
    finally:
        emulator.terminate()
        emulator.communicate()
    found = compare_runs(a.results[0].path, b.results[0].path)
    assert_delay_and_gain_are_named(found)
    assert {"world_s", "period_s", "inference_s"} <= set(found.excluded[0].stages)


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


def test_different_instructions_are_rejected_and_can_be_ignored(run_of, a_template):
    a, b = run_of("a"), run_of("b", manifest=altered(a_template, "task.instruction", "wave"))
    with pytest.raises(NotComparableError) as refusal:
        compare_runs(a, b)
    (found,) = refusal.value.mismatches
    assert (found.path, found.a, found.b) == ("task.instruction", "move the tool to the target", "wave")
    assert compare_runs(a, b, ignore=["task.instruction"]).terms.ignored == (found,)


def test_difference_is_ignored_by_its_path_or_a_parent(run_of, a_template):
    a, b = run_of("a"), run_of("b", manifest=altered(a_template, *MARGIN))
    for path in ("safety.margins.velocity", "safety"):
        found = compare_runs(a, b, ignore=[path])
        assert [mismatch.path for mismatch in found.terms.ignored] == ["safety.margins.velocity"]


@pytest.mark.parametrize(("path", "near"), [("safety.margins.vel", "velocity"), ("safet", "safety"), ("", "wrappers")])
def test_an_unknown_path_to_ignore_is_refused_with_those_near_it(run_of, path, near):
    with pytest.raises(UsageError, match=f"unknown path to ignore: '{path}': .*{near}"):
        compare_runs(run_of("a"), run_of("b"), ignore=["wrappers[0].kwargs", "task.tip", path])


def test_joints_are_tracked_by_the_contract_of_their_own_run(run_of, a_template):
    """Run B declares its joints in reverse order, also in its readings and commands."""
    b = altered(a_template, "sensors.joints.fields.position.joints", ["j6", "j5", "j4", "j3", "j2", "j1"])

    def turned(row, random):
        row["inner"]["observation"]["joints_position"].reverse()

    found = compare_runs(run_of("a"), run_of("b", manifest=b, change=steps_only(turned)), ignore=["sensors"])
    assert [one.difference for one in found.differences if one.name.kind == "tracking"] == [0.0] * 6


def test_topics_and_backends_may_differ(run_of, a_template):
    manifest = altered(a_template, "sensors.joints.topic", "robot/joint_states") | {"backend": "real"}
    b = run_of("b", manifest=manifest)
    assert compare_runs(run_of("a"), b).terms.ignored == ()


def test_unexplained_fingerprint_difference_is_rejected(run_of, a_template):
    contract = {**a_template[0]["contract"], "fingerprint": "0" * 64}
    with pytest.raises(NotComparableError, match=r"contract\.fingerprint"):
        compare_runs(run_of("a"), run_of("b", manifest={"contract": contract}))


def test_equal_fingerprints_of_an_unreadable_contract_are_compared_with_a_note(run_of, a_template):
    manifest = {"contract": {**a_template[0]["contract"], "text": "task: {type: elsewhere}"}}
    found = compare_runs(run_of("a", manifest=manifest), run_of("b", manifest=manifest))
    assert not any(one.name.kind == "tracking" for one in found.differences)
    assert "cannot be loaded" in found.terms.notes[0]


def layers(*classes, **kwargs):
    return {"wrappers": [{"class": name, "kwargs": kwargs.get(name)} for name in classes]}


RECORDER, ENV = "embodied_env:RecordTransitions", "embodied_env:EmbodiedEnv"


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


def on_mujoco(template, contract, **manifest):
    recorded = {**template[0]["contract"], "text": dump_contract(contract), "fingerprint": contract.fingerprint}
    fingerprint = contract.backend_fingerprint("mujoco")
    return {"contract": recorded, "backend": "mujoco", "backend_fingerprint": fingerprint, **manifest}


def test_worlds_of_one_backend_that_differ_are_noted(run_of, a_template):
    plain = embodied_env.load_contract("arm_reach")
    noisy = changed_contract("arm_reach", {"backends.mujoco.sources.tcp.noise": {"position": 0.1}})
    assert noisy.fingerprint == plain.fingerprint
    first = run_of("a", manifest=on_mujoco(a_template, plain))
    found = compare_runs(first, run_of("b", manifest=on_mujoco(a_template, noisy, delays={})))
    assert found.terms.notes == (
        "The profiles of mujoco differ in sources.tcp.noise. That may cause any of the differences.",
        "The injected delays differ. That may cause any of the differences.",
    )
    assert compare_runs(first, run_of("c", manifest=on_mujoco(a_template, plain))).terms.notes == ()


def test_dry_run_and_armed_run_are_not_comparable(run_of):
    dry = {"capabilities": {"actuates": False}}
    with pytest.raises(NotComparableError) as refusal:
        compare_runs(run_of("armed"), run_of("dry", manifest=dry))
    assert [(found.path, found.a, found.b) for found in refusal.value.mismatches] == [
        ("capabilities.actuates", True, False)
    ]


@pytest.mark.parametrize(
    ("flags", "world"),
    [
        ({}, "robot"),  # of a run without the flag
        ({"simulated": False, "emulated": True}, "emulator"),
    ],
)
def test_page_and_json_name_the_world_of_each_run(run_of, flags, world):
    run = run_of("a", manifest={"backend": "real", "capabilities": flags})
    found = compare_runs(run, run_of("b", manifest={"capabilities": {}}))
    assert [name_of_side(side).rpartition(" on ")[2] for side in (found.a, found.b)] == [
        f"real ({world})",
        "fake (simulator)",
    ]
    assert comparisons_as_json([found])["runs"][0]["world"] == world


# --------------------------------------------------------------------------------------------- damaged and hostile runs


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
    assert (features.steps, features.outcomes.as_json("")["episodes"]) == (3, 1)
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
    (seen,) = (one for one in found.differences if one.name.group == "scan")
    assert (seen.name.component, seen.verdict) == ("mean", "differs")
    assert (seen.a.mean, seen.b.mean) == pytest.approx((4.0, 8.0), abs=0.2)


def test_images_are_compared_by_their_means(a_template):
    def features_of(brightness):
        features = RunFeatures(None)
        for step in range(40):
            reference = {"sha256": f"{brightness}-{step}", "dtype": "uint8", "shape": [2, 2, 3]}
            features.add(step_row(a_template, observation={"front_image": reference}))
        features.close(lambda found: np.full((2, 2, 3), int(found["sha256"].split("-")[0]), dtype=np.uint8))
        return features.streams[FeatureName(kind="observation", group="front_image", component="mean")]

    dark, bright = features_of(10), features_of(200)
    assert (dark.means(1).tolist(), bright.means(1).tolist(), dark.count) == ([10.0], [200.0], 40)


def test_images_are_sampled_evenly(a_template):
    features, looked = RunFeatures(None), []
    for step in range(1000):
        reference = {"sha256": str(step), "dtype": "uint8", "shape": [2, 2, 3]}
        features.add(step_row(a_template, observation={"front_image": reference}))
    features.close(lambda found: looked.append(int(found["sha256"])) or np.zeros((2, 2, 3)))
    assert 100 < len(looked) < 300
    assert set(np.diff(looked)) == {4}


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


def test_json_output_writes_no_page(run_of, capsys):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(slower))
    assert main(["compare", str(a), str(b), "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["schema"] == "embodied_env/comparison/1"
    (comparison,) = found["comparisons"]
    assert comparison["findings"][0].startswith("B differs from A most in inference: ")
    first = comparison["differences"][0]
    assert (first["section"], first["group"], first["verdict"]) == ("timing", "inference_s", "differs")
    assert (first["relative_to"], first["matters"]) == ("control periods", pytest.approx(0.005))


def test_compare_has_status_1_for_an_unclean_run(run_of, capsys):
    a, b = run_of("a"), run_of("b", manifest={"clean": False})
    assert main(["compare", str(a), str(b), "--json"]) == 1
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["sound"] is False
    assert found["comparisons"][0]["differences"]
    assert output.err == f"not sound: {b}: manifest.json: the run was never closed\n"


def test_page_starts_with_the_largest_difference_and_loads_nothing(run_of, tmp_path, capsys):
    a, b = run_of("a"), run_of("b", seed=2, change=steps_only(slower), manifest={"backend": "<b>real</b>"})
    page = tmp_path / "compare.html"
    assert main(["compare", str(a), str(b), "-o", str(page)]) == 0
    made = page.read_text()
    body = made[made.index("<main>") :]
    assert "B differs from A most in inference: " in body[:1500]
    assert body.index("Outcome") < body.index("Motion") < body.index("Timing")
    assert "McNemar" in body
    assert "<b>real</b>" not in body
    assert 'src="http' not in made
    assert len(made) < 200_000
    assert "B differs from A most in inference" in capsys.readouterr().out


def test_three_runs_are_compared_with_the_first_one_in_a_table(run_of, tmp_path, capsys):
    runs = [run_of("a"), run_of("b", change=failing(*range(8))), run_of("c", change=steps_only(slower))]
    page = tmp_path / "compare.html"
    assert main(["compare", *map(str, runs), "-o", str(page)]) == 0
    made = page.read_text()
    assert made.count("interval-row") > 3
    assert "B differs from A most in success: 100.0 % in A, 0.0 % in B (-100.0 points" in made
    assert "C differs from A most in inference: " in made
    assert main(["compare", *map(str, runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.split("page  ")[1].split("\n", 1)[1])
    assert [run["summary"]["successes"] for run in found["runs"]] == [8, 0, 8]
    assert [(one["a"], one["b"]) for one in found["comparisons"]] == [(0, 1), (0, 2)]


def test_page_of_empty_runs_names_the_problems(run_of, tmp_path, capsys):
    a, b = run_of("a", episodes=0), run_of("b", episodes=0, manifest={"clean": False, "policy": "other"})
    page = tmp_path / "compare.html"
    assert main(["compare", str(a), str(b), "-o", str(page)]) == 1
    made = page.read_text()
    assert "Run A has no step, and" not in made
    for sentence in ("Run A has no step", "Not sound evidence", "the run was never closed", "No paired test"):
        assert sentence in made
