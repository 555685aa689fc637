import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from delay_models import VARYING, constant
from evidence import assert_replays, assert_transitions_sound

import embodied_env
from embodied_env.backends.mujoco_backend import MujocoBackend
from embodied_env.core.code_table import CODES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.errors import UsageError
from embodied_env.record import read_run
from embodied_env.timing.delay_model import DelayDistribution, DelayModel, delays_of, load_delays, schedule_of
from embodied_env.timing.latency_profile import (
    Estimate,
    LatencyProfile,
    LatencyProfileError,
    MeasuredStepDelays,
    read_profile,
    write_profile,
)

ARM = embodied_env.load_contract("arm_reach")
PERIOD_S = ARM.control_period_s
TIMESTEP_S = 0.0025
SENSORS = ("joints", "tcp", "target")
TURN = np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.0])


def model(age_s=0.0, inference_s=0.0, actuation_s=0.0, **options):
    late = dict.fromkeys(SENSORS, age_s if isinstance(age_s, DelayDistribution) else constant(age_s))
    return DelayModel(sensors=late, inference=constant(inference_s), actuation=constant(actuation_s), **options)


def drive(delays, steps=12, *, backend="mujoco", seed=1, action=TURN, **options):
    """Return the observation and info of the reset, and of each step."""
    env = embodied_env.make(ARM, backend=backend, delay_profile=delays, clock="virtual", **options)
    found = [env.reset(seed=seed)]
    for _ in range(steps):
        observation, _, _, _, info = env.step(action)
        found.append((observation, info))
    env.close()
    return found


def injected(found):
    return [info["latency"]["injected"] for _, info in found[1:]]


def positions(found):
    return np.array([observation["joints_position"] for observation, _ in found])


@pytest.mark.parametrize("age_s", [0.0125, 0.013123457, 0.05, 0.0999])
def test_constant_delay_gives_exact_reading_age(age_s):
    found = drive(model(age_s=age_s))
    ages = [info["sensors"]["joints"]["age_s"] for _, info in found[2:]]
    assert ages == [round(age_s * 1e9) / 1e9] * len(ages)


def test_a_delayed_reading_has_the_values_of_the_last_physics_step_before_its_stamp():
    period_steps = round(PERIOD_S / TIMESTEP_S)
    exact = positions(drive(model(age_s=4 * TIMESTEP_S)))
    a_little_older = positions(drive(model(age_s=3.2 * TIMESTEP_S)))
    next_one = positions(drive(model(age_s=3 * TIMESTEP_S)))
    assert np.array_equal(exact, a_little_older)
    assert not np.array_equal(exact, next_one)
    whole = positions(drive(model(age_s=period_steps * TIMESTEP_S)))
    assert np.array_equal(whole[2:], positions(drive(model()))[1:-1])


def test_first_observations_repeat_the_reset_and_are_marked():
    found = drive(model(age_s=2.5 * PERIOD_S))
    at_reset = found[0][0]
    for observation, _ in found[1:3]:
        assert all(np.array_equal(observation[key], at_reset[key]) for key in at_reset)
    assert positions(found)[0].any()
    qualities = [info["latency"]["quality"]["injected"]["age_s"]["joints"] for _, info in found[1:]]
    assert qualities[:3] == [Quality.FIRST] * 3
    assert set(qualities[3:]) == {Quality.OK}


def test_stale_delayed_reading_is_held_and_the_gate_brakes():
    found = drive(model(age_s=0.2), steps=8)
    codes = [info["safety"]["code"].max() for _, info in found[1:]]
    assert any(info["sensors"]["joints"]["quality"] == Quality.STALE for _, info in found)
    assert codes[-1] == CODES["obs.stale"]


def test_gates_add_inference_to_observation_age():
    within, beyond = (drive(model(age_s=0.1, inference_s=inference_s), steps=8) for inference_s in (0.04, 0.06))
    stale = CODES["obs.stale"]
    assert within[-1][1]["safety"]["code"].max() != stale
    assert beyond[-1][1]["safety"]["code"].max() == stale


def test_evaluator_sensors_are_not_delayed():
    found = drive(model(age_s=0.04), evaluator_info=True)
    assert {info["sensors"]["true_distance"]["age_s"] for _, info in found} == {0.0}


@pytest.mark.parametrize("delay_s", [0.05, 0.1])
def test_command_acts_after_whole_periods(delay_s):
    late = round(delay_s / PERIOD_S)
    delayed, at_once = positions(drive(model(actuation_s=delay_s))), positions(drive(None))
    step_rad = (
        np.abs(np.diff(at_once[:, 0])).max() * 0.0025 / PERIOD_S
    )  # without delays, setpoints lead by a physics step
    assert np.allclose(delayed[late:, 0], at_once[:-late, 0], atol=step_rad + 1e-4)  # the arm sags while it waits
    assert not np.allclose(delayed[:, 0], at_once[:, 0], atol=1e-2)


def test_a_command_acts_during_the_period_in_which_it_is_due():
    moved = [positions(drive(model(actuation_s=delay_s), steps=3))[-1, 0] for delay_s in (0.0, 0.0125, 0.025, 0.05)]
    assert moved == sorted(moved, reverse=True)
    assert len(set(moved)) == len(moved)


def test_inference_and_actuation_delay_a_command_together():
    apart = drive(model(inference_s=0.02, actuation_s=0.03))
    together = drive(model(actuation_s=0.05))
    assert np.array_equal(positions(apart), positions(together))


def test_pending_commands_are_dropped_at_a_reset(close_later):
    env = close_later(embodied_env.make(ARM, delay_profile=model(actuation_s=0.12), clock="virtual"))
    env.reset(seed=1)
    for _ in range(5):
        env.step(TURN)
    observation, _ = env.reset(seed=1)
    start = observation["joints_position"]
    for _ in range(2):
        observation, *_ = env.step(np.zeros(6))
    assert np.allclose(observation["joints_position"], start, atol=1e-4)


def test_delays_depend_on_the_seed():
    one, again, other = (injected(drive(VARYING, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_injected_delays_add_up_exactly():
    for put in injected(drive(VARYING, steps=30)):
        total_ns = [round(1e9 * put[key]) for key in ("inference_s", "actuation_s")]
        for name in SENSORS:
            assert round(1e9 * put["data_age_s"][name]) == round(1e9 * put["age_s"][name]) + total_ns[0]
        assert round(1e9 * put["end_to_end_s"]) == round(1e9 * put["age_s"]["joints"]) + sum(total_ns)


def test_measured_stages_are_unchanged_by_injection():
    (_, info), *_ = drive(model(age_s=0.02, inference_s=0.03, actuation_s=0.03), steps=3, host_timing=True)[1:]
    assert info["latency"]["obs_to_command_s"] == 0.0  # by the virtual clock
    assert info["latency_ms"] == 0.0


def test_missing_actuation_delay_is_unknown():
    delays = DelayModel(sensors=dict.fromkeys(SENSORS, constant(0.01)))
    _, info = drive(delays, steps=3)[-1]
    quality = info["latency"]["quality"]["injected"]
    assert (quality["actuation_s"], quality["end_to_end_s"]) == (Quality.UNKNOWN, Quality.UNKNOWN)
    assert info["latency"]["injected"]["actuation_s"] == 0.0


@pytest.mark.parametrize(
    ("backend", "options"),
    [("fake", {}), pytest.param("replay", {"run": "runs"}, marks=pytest.mark.needs("replay"))],
)
def test_other_backends_refuse_delays_and_name_those_that_inject_them(backend, options):
    expected = f"not supported by {backend} \\(expected mujoco or mujoco_ros in lockstep\\); .* omit delay_profile"
    with pytest.raises(UsageError, match=expected):
        embodied_env.make(ARM, backend=backend, delay_profile=model(), **options)


def test_delays_are_a_model():
    with pytest.raises(UsageError, match=r"invalid delays=\{'joints': 0.02\} \(expected a DelayModel\)"):
        embodied_env.make(ARM, delays=cast("Any", {"joints": 0.02})).reset()


def test_delays_are_rejected_in_real_time():
    with pytest.raises(UsageError, match="not supported by mujoco in real time"):
        embodied_env.make(ARM, pacing="realtime", delay_profile=model())


def test_a_delayed_world_is_also_braked_at_close(monkeypatch):
    sent = []
    send = MujocoBackend.send
    monkeypatch.setattr(MujocoBackend, "send", lambda self, command: sent.append(command) or send(self, command))
    env = embodied_env.make(ARM, delay_profile=model(), clock="virtual")
    env.reset(seed=1)
    for _ in range(5):
        env.step(TURN)
    moving = sent[-1].report.velocity_si
    env.close()
    assert len(sent) == 6
    assert sent[-1].report.disposition is Severity.HOLD
    assert np.abs(sent[-1].report.velocity_si).sum() < np.abs(moving).sum()


def test_delays_are_accepted_only_once():
    with pytest.raises(UsageError, match="twice"):
        embodied_env.make(ARM, delay_profile=model(), delays=model())


@pytest.mark.parametrize(
    ("sensors", "words"),
    [(("joints", "tcp"), "no delay of the sensor 'target'"), ((*SENSORS, "sonar"), "unknown sensor 'sonar'")],
)
def test_delays_cover_exactly_the_agent_visible_sensors(sensors, words):
    with pytest.raises(UsageError, match=words):
        embodied_env.make(ARM, delay_profile=DelayModel(sensors=dict.fromkeys(sensors, constant(0.0))))


def ks_distance(a, b):
    both = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(values), both, side="right") / len(values) for values in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def robot_steps(count=600):
    """Return blocks of robot steps with a drifting driver, a camera at a fifth of the rate and correlated stages."""
    rng = np.random.default_rng(7)
    blocks, phase = [], 0
    for _ in range(count // 10):
        block = []
        for _ in range(10):
            load = rng.lognormal(0.0, 0.4)
            camera = 20e6 + 50e6 * (phase % 2) + 1e6 * load
            block.append(tuple(round(v) for v in (9e6 * load, camera, 12e6, 6e6 * load, 35e6 + 8e6 * rng.random())))
            phase += 1
        blocks.append(tuple(block))
    return MeasuredStepDelays(sensors=SENSORS, blocks_ns=tuple(blocks))


def test_profile_ages_and_end_to_end_latencies_are_reproduced():
    """The schedule of the worlds is tested.

    This is the small edition of `test/extensions/calibration/test_profile_from_run_real.py`.
    """
    steps = robot_steps()
    schedule = schedule_of(DelayModel(steps=steps), ARM)
    found = {"joints": [], "tcp": [], "end_to_end": []}
    for seed in range(21):
        schedule.begin(seed, 10**9)
        for k in range(3, 103):
            plan = schedule.plan(k)
            ages = {name: plan.frozen_ns - plan.taken_ns[name] for name in SENSORS}
            for name in ("joints", "tcp"):
                found[name].append(ages[name] + plan.inference_ns)
            found["end_to_end"].append(ages["joints"] + plan.inference_ns + plan.actuation_ns)
    rows = np.array([row for block in steps.blocks_ns for row in block])
    wanted = {"joints": rows[:, 0] + rows[:, 3], "tcp": rows[:, 1] + rows[:, 3]}
    wanted["end_to_end"] = wanted["joints"] + rows[:, 4]
    distances = {name: ks_distance(np.array(found[name]), wanted[name]) for name in wanted}
    assert min(map(len, found.values())) >= 2000
    assert max(distances.values()) < 0.1, distances


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a run with injected delays."""
    pytest.importorskip("mcap", reason="runs are recorded by mcap")
    folder = tmp_path_factory.mktemp("runs")
    env = embodied_env.make(ARM, delay_profile=VARYING, record=folder)
    for seed in (4, None):
        env.reset(seed=seed)
        for _ in range(30):
            env.step(TURN)
    env.close()
    return next(folder.iterdir())


@pytest.mark.needs("calibration")
def test_run_profile_keeps_steps_through_a_file(recorded, tmp_path):
    from embodied_env.extensions.calibration.profile_from_run import profile_of_run

    profile = profile_of_run(read_run(recorded))
    write_profile(profile, tmp_path / "latency_profile.json")
    assert read_profile(tmp_path / "latency_profile.json") == profile
    assert (profile.contract, profile.backend, profile.seed) == ("arm_reach", "mujoco (simulator)", 4)
    assert profile.steps.sensors == ("joints", "target", "tcp")
    assert 50 <= profile.steps.count < 60
    assert {ns / 1e9 for ns in profile.steps.obs_to_command_ns()} == {0.004, 0.009}
    assert profile.age_s["target"].value_s == 0.02


def test_run_with_delays_passes_the_audit(recorded):
    assert_transitions_sound(read_run(recorded).transitions(), ARM)


def test_a_run_with_delays_replays_bit_for_bit(recorded):
    assert_replays(recorded, transitions=60)


@pytest.mark.needs("calibration")
def test_a_run_of_few_steps_has_no_profile(tmp_path):
    from embodied_env.extensions.calibration.profile_from_run import profile_of_run

    empty: Any = SimpleNamespace(manifest={}, rows=lambda: iter(()))
    with pytest.raises(LatencyProfileError, match="latencies measured: 0"):
        profile_of_run(empty)


@pytest.mark.needs("calibration")
def test_profile_verb_writes_a_file_accepted_by_make(recorded, tmp_path, capsys):
    from embodied_env.cli.main import main

    out = tmp_path / "latency_profile.json"
    assert main(["profile", str(recorded), "-o", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stages"]["age_s"].keys() == set(SENSORS)
    assert len(injected(drive(str(out), steps=4))) == 4


@pytest.mark.needs("calibration", "evaluation")
def test_a_policy_is_evaluated_with_delays(recorded, tmp_path, capsys):
    from embodied_env.cli.main import main
    from embodied_env.extensions.calibration.profile_from_run import profile_of_run

    out = tmp_path / "latency_profile.json"
    write_profile(profile_of_run(read_run(recorded)), out)
    options = ["--policy", "hold", "--episodes", "1", "--delay-profile", str(out), "--out", str(tmp_path / "runs")]
    assert main(["evaluate", "arm_reach", *options]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert "injected.end_to_end_s" in json.loads((path / "summary.json").read_text())["latency"]


@pytest.mark.parametrize("draw", ["empirical", "constant", "lognormal"])
def test_profile_supports_three_kinds_of_distributions(draw):
    steps = robot_steps(100)
    profile = LatencyProfile(
        contract="arm_reach", fingerprint="", backend="real", created_utc="", host="", seed=0, steps=steps
    )
    found = delays_of(profile, draw=draw)
    assert set(found.names) == set(SENSORS)
    assert found.has_actuation
    put = injected(drive(found, steps=6))
    assert (len({each["inference_s"] for each in put}) == 1) == (draw == "constant")


def test_calibration_profile_delays_readings():
    late = Estimate(value_s=0.02, low_s=0.01, high_s=0.03, method="stamp", n=3, samples_s=(0.01, 0.02, 0.03))
    known = Estimate(value_s=0.03, low_s=0.03, high_s=0.03, method="state", n=3)
    profile = LatencyProfile(
        contract="arm_reach",
        fingerprint="",
        backend="real",
        created_utc="",
        host="",
        seed=0,
        actuation_s=known,
        capture_s=dict.fromkeys(SENSORS, late),
    )
    put = injected(drive(profile, steps=12))[2:]
    assert {each["age_s"]["joints"] for each in put} <= {0.01, 0.02, 0.03}
    assert {each["actuation_s"] for each in put} == {0.03}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: constant(-0.1), "0 to"),
        (lambda: constant(float("nan")), "0 to"),
        (lambda: DelayDistribution(kind="lognormal", values=(0.1,)), "expected 2"),
        (lambda: DelayDistribution(kind="uniform", values=(0.1,)), "constant, empirical, lognormal"),  # type: ignore[arg-type]
        (lambda: DelayModel(order="shuffled"), "as_drawn"),  # type: ignore[arg-type]
        (lambda: load_delays("/nowhere.json"), "cannot read"),
        (lambda: load_delays(7), "expected a file"),  # type: ignore[arg-type]
        (
            lambda: delays_of(LatencyProfile(contract="", fingerprint="", backend="", created_utc="", host="", seed=0)),
            "no sensors",
        ),
    ],
)
def test_invalid_delays_are_rejected(make, words):
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize("row", [(1, 2), (1, -2, None), (None, 1, 1), (1.5, 1, 1), (1, 1, True)])
def test_invalid_measured_step_is_rejected(row):
    with pytest.raises(LatencyProfileError):
        MeasuredStepDelays(sensors=("joints",), blocks_ns=((row,),))
