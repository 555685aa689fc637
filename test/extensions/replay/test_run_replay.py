"""Equal actions give equal transitions, and a change appears where it first matters."""

import json
import shutil
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delayed_fake import FakeDelays
from gymnasium.wrappers import RescaleAction, TransformObservation
from run_files import record, rewrite_log, with_a_chunk_per_row

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, PolicyError, RecordError, UsageError
from embodied_env.extensions.replay.row_differences import row_differences
from embodied_env.extensions.replay.run_replay import replay_policy, replay_run, simulate_run
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.arrays import is_reference, portable, refer_to
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.safety.interlocks.latency import LatencyBudget
from embodied_env.safety.interlocks.tracking import Tracking
from embodied_env.timing.clock import NS_PER_S, SteadyClock

ARM = load_contract("arm_reach")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Record two episodes of an arm in MuJoCo."""
    return record(tmp_path_factory.mktemp("runs"), [[None] * 12, [None] * 8], backend="mujoco")


def changed_joints(**keys):
    arm = ARM.actuators["arm"]
    joints = {**arm.joints, "j2": replace(arm.joints["j2"], **keys)}
    return replace(ARM, actuators={"arm": replace(arm, joints=joints)})


# ----------------------------------------------------------------------------------------------- bit-identical replay


def test_a_run_replays_equal_under_its_own_contract(simulated):
    replay = replay_run(simulated)
    assert (replay.difference, replay.transitions, replay.resets) == (None, 20, 2)
    assert replay.sound
    assert not any((replay.contract_changed, replay.wrapped, replay.reconstructed, replay.left_out))


@pytest.mark.parametrize(
    ("name", "steps", "options"),
    [
        ("cart_goal", 20, {"backend": "mujoco"}),  # velocity commands, with confidences and delayed readings
        ("arm_reach", 10, {"clock": "virtual", "evaluator_info": True}),
    ],
)
def test_a_run_of_each_contract_replays_equal(tmp_path, name, steps, options):
    path = record(tmp_path, [[None] * steps], load_contract(name), **options)
    replay = replay_run(path)
    assert (replay.difference, replay.transitions) == (None, steps)


@pytest.mark.needs("audit")
def test_run_with_gaps_records_the_velocities_used_and_replays_equal(tmp_path):
    """Its controller stops the cart after 0.5 s without a command, and the policy takes longer twice."""
    from embodied_env.extensions.audit import audit_run

    cart, clock = load_contract("cart_goal"), SteadyClock()
    patient = replace(cart.safety, watchdog=WatchdogSpec(hold_steps=1000, stop_steps=2000))
    cart = replace(cart, safety=replace(patient, observation=replace(patient.observation, required=())))
    env = RecordTransitions(EmbodiedEnv(cart, backend="fake", free_running=True, clock=clock), tmp_path)
    with env:
        env.reset(seed=1)
        env.unwrapped.stepper._arbiter.publishing._rest_after_ns = 150_000_000, NS_PER_S // 2
        for step in range(12):
            if step in (5, 9):
                clock.sleep_until_ns(clock.now_ns() + 6 * NS_PER_S // 10)
            env.step(np.ones(2))
    rows = list(read_run(env.path).transitions())
    gaps = [step for step, row in enumerate(rows) if any(f["code"] == "vel.gap" for f in row["inner"]["findings"])]
    assert gaps == [5, 9]
    for step in gaps:
        reference = rows[step]["inner"]["external_inputs"]["reference"]
        assert reference["velocities"] == [0.0, 0.0]
        assert reference["before_gap"] == rows[step - 1]["inner"]["report"]["velocity_si"]
    replay = replay_run(env.path)
    assert (replay.difference, replay.transitions) == (None, 12)
    assert not [broken for broken in audit_run(env.path).violations if broken.rule.startswith(("gates", "clipping"))]


def test_replayed_images_are_equal_and_owned_by_the_agent(close_later, tmp_path):
    path = record(tmp_path, [[None] * 2], load_contract("door_open"), backend="mujoco", evaluator_info=True)
    replay = replay_run(path)
    assert (replay.difference, replay.transitions) == (None, 2)
    run = read_run(path)
    env = close_later(embodied_env.make(backend="replay", run=run))
    env.reset()
    for row in run.transitions():
        observation, *_ = env.step(np.array(row["inner"]["action"]))
        images = {key: ref for key, ref in row["inner"]["observation"].items() if is_reference(ref)}
        assert images
        for key, reference in images.items():
            assert refer_to(portable(observation[key])) == reference
            assert observation[key].flags.writeable


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (None, 0.0), ([1.0], [1.0, 2.0]), (True, 1)])
def test_changed_record_differs(one, other):
    recorded: Any = {"schema": TRANSITION, "inner": {"reward": one}, "info": {}}
    replayed: Any = {"schema": TRANSITION, "inner": {"reward": other}, "info": {}}
    assert [path for path, _, _ in row_differences(recorded, replayed)] == ["inner.reward"]
    assert list(row_differences(recorded, recorded)) == []


@pytest.mark.needs("audit")
def test_recorded_replay_passes_the_audit_and_can_be_replayed(simulated, tmp_path):
    from embodied_env.extensions.audit import audit_run

    env = embodied_env.make(backend="replay", run=simulated, record=tmp_path)
    for row in read_run(simulated).rows():
        if row["schema"] == RESET:
            env.reset(seed=row["seed"])
        else:
            env.step(np.array(row["action"]))
    env.close()
    assert audit_run(env.path).problems == ()
    assert replay_run(env.path).sound


@pytest.mark.parametrize(
    "fault", [ScriptedFault(kind="refuse", step=3), ScriptedFault(kind="delay", step=3, delay_s=9.0)]
)
def test_lost_backend_is_lost_again_for_the_same_reason(tmp_path, fault):
    path = record(tmp_path, [[None] * 5, [None] * 2], clock="virtual", faults=[fault])
    replay = replay_run(path)
    assert (replay.difference, replay.transitions) == (None, 5)
    assert json.loads((path / "summary.json").read_text())["end_reasons"].keys() & {
        "backend_lost:refused",
        "backend_lost:timeout",
    }


def test_out_of_range_readings_are_validated_again(tmp_path):
    tcp = ARM.sensors["tcp"]
    narrow = replace(tcp.fields["position"], low=-0.1, high=0.1)
    contract = replace(ARM, sensors={**ARM.sensors, "tcp": replace(tcp, fields={"position": narrow})})
    path = record(tmp_path, [[None] * 3], contract, backend="mujoco")
    assert replay_run(path).sound
    found = replay_run(path, contract=ARM).difference
    assert (found.field, found.recorded, found.replayed) == ("inner.sensors.tcp.quality", "OUT_OF_RANGE", "OK")


# ------------------------------------------------------------------------------------------------------ free-running worlds


def test_timing_decisions_are_replayed_from_the_record(tmp_path):
    budget = replace(ARM.safety.latency, budget_s=0.1, misses=1, action="hold")
    keys: dict = {"latency": budget, "tracking": Tracking()}
    contract = replace(ARM, safety=replace(ARM.safety, **keys))
    world: dict = {"backend": "delayed_fake", "delays": FakeDelays(driver_s=0.002)}
    with RecordTransitions(EmbodiedEnv(contract, **world), tmp_path) as env:
        env.reset(seed=1)
        for step in range(8):
            if step == 4:
                time.sleep(3.5 * contract.control_period_s)  # the watchdog brakes, and the next action is late
            env.step(np.full(6, 0.9))
        seen = env.unwrapped.last_transition.external_inputs
    codes_by_step = [[f["code"] for f in row["inner"]["findings"]] for row in read_run(env.path).transitions()]
    codes = set().union(*codes_by_step)
    assert {"act.late", "lat.budget"} <= codes
    assert seen.watchdog_trips >= 1
    assert replay_run(env.path).difference is None
    relaxed = replace(contract, safety=replace(contract.safety, **{**keys, "latency": LatencyBudget()}))
    found = replay_run(env.path, contract=relaxed).difference
    assert found.field.startswith("inner.findings")
    assert found.step == 1 + next(step for step, codes in enumerate(codes_by_step) if "lat.budget" in codes)


def test_estop_and_its_clearing_are_replayed(tmp_path):
    env = EmbodiedEnv(ARM, backend="fake")
    recorded = RecordTransitions(env, tmp_path)
    world: Any = env.stepper.backend
    with recorded:
        recorded.reset(seed=1)
        recorded.step(np.ones(6))
        world.estop_states["button"] = "active"
        *_, truncated, _ = recorded.step(np.ones(6))
        assert truncated
        world.estop_states["button"] = "ok"
        env.clear_estop()
        recorded.reset()
        *_, truncated, _ = recorded.step(np.ones(6))
        assert not truncated
    replay = replay_run(recorded.path)
    assert (replay.difference, replay.transitions) == (None, 3)


# ---------------------------------------------------------------------------------------------------------------- changes


def first_difference(path, contract):
    replay = replay_run(path, contract=contract)
    assert replay.contract_changed
    assert not replay.sound
    return replay.difference


def test_changed_limit_differs_where_it_first_limits(simulated):
    found = first_difference(simulated, changed_joints(acceleration=1.0))
    assert (found.row, found.episode, found.step) == (1, 1, 1)
    assert found.field.startswith("inner.findings")
    assert "inner.report.applied_si" in found.others


def test_changed_success_radius_differs_where_an_episode_ends(simulated):
    wide = replace(ARM, task=replace(ARM.task, parameters={**ARM.task.parameters, "success_radius_m": 0.43}))
    found = first_difference(simulated, wide)
    assert (found.episode, found.step) == (2, 8)
    fields = (found.field, *found.others)
    assert "inner.end_reasons" in fields
    assert not any(field.startswith(("inner.observation", "inner.report")) for field in fields)


def test_changed_success_radius_differs_at_a_solved_reset(simulated):
    wide = replace(ARM, task=replace(ARM.task, parameters={**ARM.task.parameters, "success_radius_m": 0.5}))
    found = first_difference(simulated, wide)
    assert (found.row, found.field) == (0, "inner.verdict.success")


def test_a_run_is_simulated_again_by_its_own_contract_only(simulated):
    assert simulate_run(simulated, contract=ARM).sound
    with pytest.raises(UsageError, match=ARM.fingerprint):
        simulate_run(simulated, contract=changed_joints(acceleration=1.0))


# --------------------------------------------------------------------------------------------- actions, wrappers, unclean runs


def test_valid_action_that_json_cannot_represent_is_replayed_from_the_gate_report(tmp_path):
    class Tensor:
        def detach(self):
            return self

        cpu = detach

        def __array__(self, dtype=None, copy=None):
            return np.full(6, 0.3, dtype=np.float32)

    replay = replay_run(record(tmp_path, [[Tensor(), Tensor()]]))
    assert (replay.difference, replay.transitions, replay.reconstructed) == (None, 2, 2)


def test_wrapped_run_replays_the_inner_transitions(tmp_path):
    def wrap(env):
        shifted = TransformObservation(env, lambda seen: {**seen, "tcp_position": seen["tcp_position"] + 1}, None)
        return RescaleAction(shifted, np.float32(-5), np.float32(5))

    path = record(tmp_path, [[np.full(6, 2.0)] * 3], wrap=wrap)
    replay = replay_run(path)
    assert (replay.difference, replay.transitions, replay.wrapped) == (None, 3, True)


def test_truncated_run_replays_to_its_end_and_fails_the_audit(simulated, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(simulated, path)
    log = with_a_chunk_per_row(path)
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])
    replay = replay_run(path)
    assert replay.equal
    assert not replay.sound
    assert 0 < replay.transitions < 20
    assert "its writer was stopped" in replay.problem


def test_run_without_transitions_fails(tmp_path):
    replay = replay_run(record(tmp_path, [[]]))
    assert (replay.resets, replay.sound) == (1, False)


# ------------------------------------------------------------------------------------------------------------ the backend


def test_unpublished_command_is_counted(close_later, simulated):
    env = close_later(embodied_env.make(backend="replay", run=simulated))
    backend = env.unwrapped.stepper.backend
    env.reset()
    action = np.array(next(read_run(simulated).transitions())["action"])
    env.step(action)
    assert backend.departures == 0
    env.step(-action)
    assert backend.departures == 1


def test_step_after_the_last_recorded_one_loses_the_backend(close_later, tmp_path):
    env = close_later(embodied_env.make(backend="replay", run=record(tmp_path, [[np.zeros(6)]])))
    env.reset()
    env.step(np.zeros(6))
    *_, truncated, info = env.step(np.zeros(6))
    assert (truncated, info["end_reason"]) == (True, "backend_lost:recording_ended")
    with pytest.raises(BackendNotReadyError, match="no more episodes"):
        env.reset()


def test_backend_accepts_only_approved_commands(close_later, simulated):
    env = close_later(embodied_env.make(backend="replay", run=simulated))
    backend = env.unwrapped.stepper.backend
    env.reset()
    with pytest.raises(TypeError, match="expected an ApprovedCommand"):
        backend.send(np.zeros(6))


def test_contract_is_optional_only_for_replay():
    with pytest.raises(UsageError, match="optional only with backend="):
        embodied_env.make(backend="fake")


# --------------------------------------------------------------------------------------------------------------- policies


def test_recorded_policy_never_diverges(simulated):
    actions = iter([row["action"] for row in read_run(simulated).transitions()])
    replay = replay_policy(simulated, lambda _: np.array(next(actions)))
    assert replay.first is None
    assert [found.steps for found in replay.episodes] == [12, 8]
    assert all((found.largest == 0).all() for found in replay.episodes)


def test_policy_gets_the_observation_before_each_action(simulated):
    seen = []
    replay_policy(simulated, lambda observation: seen.append(observation) or np.zeros(6))
    recorded = [row["observation"] for row in read_run(simulated).rows()]
    assert len(seen) == 20
    assert all(ARM.observation_space.contains(observation) for observation in seen)
    assert seen[0]["tcp_position"].tolist() == recorded[0]["tcp_position"]
    assert seen[12]["tcp_position"].tolist() == recorded[13]["tcp_position"]


def test_divergence_is_reported_by_component(simulated):
    actions = [np.array(row["action"]) for row in read_run(simulated).transitions()]
    actions[14][2] += 0.25
    given = iter(actions)
    replay = replay_policy(simulated, lambda _: next(given))
    assert replay.first == (2, 3)
    second = replay.episodes[1]
    assert (second.diverged, second.unreadable) == (1, 0)
    assert second.largest.tolist() == pytest.approx([0, 0, 0.25, 0, 0, 0])
    assert second.mean.tolist() == pytest.approx([0, 0, 0.25 / 8, 0, 0, 0])


def test_malformed_actions_diverge_and_are_counted(simulated):
    replay = replay_policy(simulated, lambda _: np.full(6, np.nan))
    assert replay.first == (1, 1)
    assert [found.unreadable for found in replay.episodes] == [12, 8]
    assert np.isnan(replay.episodes[0].mean).all()


def test_invalid_tolerance_is_rejected(simulated):
    with pytest.raises(UsageError, match="tolerance: nan"):
        replay_policy(simulated, lambda _: np.zeros(6), tolerance=float("nan"))


def test_policy_error_names_episode_and_step(simulated):
    def act(observation):
        raise RuntimeError("no weights")

    with pytest.raises(PolicyError, match="episode 1, step 1: RuntimeError: no weights"):
        replay_policy(simulated, act)


@pytest.mark.needs("audit")
@pytest.mark.parametrize("world", [{"backend": "mujoco"}, {"backend": "fake", "free_running": True}])
def test_run_with_changed_limits_replays_equal(tmp_path, world):
    """In motion, at rest, from the next reset on, back to those of the contract, and before the first step."""
    from embodied_env.extensions.audit import audit_run

    joints = ARM.actuators["arm"].joints
    changes = {
        (0, 6): {"j1": replace(joints["j1"], velocity=0.5)},
        (0, 9): {"j2": replace(joints["j2"], velocity=0.2), "j1": replace(joints["j1"], velocity=0.3)},
        (1, 0): {"j1": replace(joints["j1"], velocity=0.5, acceleration=1.0)},
        (2, 4): {},
        (3, 0): {"j1": replace(joints["j1"], position=(3.0, 6.28))},  # the arm is outside of it
    }
    env = RecordTransitions(EmbodiedEnv(ARM, **world), tmp_path)
    with env:
        for episode in range(4):
            env.reset(seed=3 if episode == 0 else None)
            for step in range(12):
                if (episode, step) in changes:
                    env.unwrapped.change_limits(changes[episode, step])
                env.step(np.full(6, 0.7))
    rows = list(read_run(env.path).transitions())
    assert ["limits" in row["inner"]["external_inputs"] for row in rows] == [False] * 6 + [True] * 42
    codes = [{finding["code"] for finding in row["inner"]["findings"]} for row in rows]
    if not world.get("free_running"):  # in real time, a late step brakes the arm before the limits change
        assert "limits.tightened" in codes[6]
    replay = replay_run(env.path)
    assert (replay.difference, replay.transitions) == (None, 48)
    assert not [broken for broken in audit_run(env.path).violations if not broken.rule.startswith("latency")]


@pytest.mark.parametrize(
    ("row", "field", "value"),
    [
        (0, ("options", "target"), {"x": 1}),
        (2, ("external_inputs", "limits", "velocity"), [1.0]),
        (2, ("external_inputs", "limits", "joints"), ["j1"]),
    ],
)
def test_malformed_recorded_options_and_limits_give_one_error(tmp_path, row, field, value):
    with RecordTransitions(EmbodiedEnv(ARM, backend="fake"), tmp_path) as env:
        env.reset(seed=3)
        env.step(np.full(6, 0.7))
        env.unwrapped.change_limits({"j1": replace(ARM.actuators["arm"].joints["j1"], velocity=0.5)})
        env.step(np.full(6, 0.7))
    rows = list(read_run(env.path).rows())
    place = rows[row]["inner"]
    for key in field[:-1]:
        place = place[key]
    place[field[-1]] = value
    rewrite_log(env.path, rows)
    with pytest.raises(RecordError, match=field[1]):
        replay_run(env.path)
