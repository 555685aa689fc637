"""inspect-robots over an environment: its conformance checks, policies, and the end of an evaluation."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import embodied_env
from embodied_env.backends.fake import Fault
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import Severity
from embodied_env.errors import UsageError
from embodied_env.policies.loader import load_policy
from embodied_env.record import read_run

inspect_robots = pytest.importorskip("inspect_robots", reason='needs pip install "embodied_env[inspect]"')

from inspect_robots import Action, ActionChunk, Scene, Target, Task  # noqa: E402
from inspect_robots.approver import DeltaLimitApprover  # noqa: E402
from inspect_robots.conformance import check_embodiment, check_guardrail_contribution  # noqa: E402
from inspect_robots.errors import CompatibilityError, SafetyAbort  # noqa: E402

from embodied_env.envs.adapters.inspect_robots import EmbodiedEmbodiment  # noqa: E402

CONTRACTS = ["arm_reach", "cart_goal", "door_open"]
ARM = embodied_env.load_contract("arm_reach")
SCENE = Scene(id="one", instruction="reach the target")


@pytest.fixture
def make(close_later):
    """Return a function that makes embodiments over the fake world, closed after the test."""

    def build(contract="arm_reach", **options):
        return close_later(EmbodiedEmbodiment(contract, **({"backend": "fake", "clock": "virtual"} | options)))

    return build


class FunctionPolicy:
    """An inspect-robots policy from a function of the observation."""

    config = inspect_robots.PolicyConfig()

    def __init__(self, embodiment, act):
        space, hz = embodiment.info.action_space, embodiment.info.control_hz
        self.info = inspect_robots.PolicyInfo(name="acts", action_space=space, control_hz=hz)
        self._act = act

    def reset(self, scene):
        pass

    def act(self, observation):
        return ActionChunk([Action(np.asarray(self._act(observation), dtype=np.float64))])


def rest(observation):
    return np.zeros(6)


def evaluate(tmp_path, embodiment, act, *, scenes=(SCENE,), **options):
    task = Task(name="t", scenes=list(scenes), scorer="success_at_end", max_steps=500)
    return inspect_robots.eval(
        task, FunctionPolicy(embodiment, act), embodiment, log_dir=str(tmp_path / "logs"), **options
    )[0]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_each_contract_passes_the_conformance_check_of_inspect_robots(make, contract):
    embodiment = make(contract)
    assert check_embodiment(embodiment.info).issues == ()
    assert check_guardrail_contribution(embodiment, embodiment.info.action_space).issues == ()
    assert isinstance(embodiment, inspect_robots.Embodiment)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_observations_have_the_declared_names_and_shapes(make, contract):
    embodiment = make(contract)
    space = embodiment.info.observation_space
    seen = embodiment.reset(SCENE, seed=1)
    assert {camera.name: (camera.height, camera.width, camera.channels) for camera in space.cameras} == {
        name: image.shape for name, image in seen.images.items()
    }
    assert all(image.dtype == np.uint8 for image in seen.images.values())
    assert {field.key: field.shape for field in space.state.fields}.items() <= {
        key: value.shape for key, value in seen.state.items()
    }.items()
    assert all(value.dtype.kind == "f" for value in seen.state.values())
    assert seen.image_times.keys() == seen.images.keys()
    assert seen.instruction == "reach the target"


def test_evaluator_readings_are_not_in_the_observation(make):
    seen = make("cart_goal").reset(SCENE, seed=1)
    assert not [key for key in seen.state if "true" in key or "collision" in key]
    assert not {"true_pose", "true_goal", "collision"} & seen.extra["embodied_env"]["sensors"].keys()


def test_actions_in_si_units_equal_those_of_the_contract(make, tmp_path):
    embodiment, env = make(), embodied_env.make("arm_reach", backend="fake", clock="virtual")
    embodiment.reset(SCENE, seed=5)
    env.reset(seed=5)
    layout = ActionLayout(ARM)
    for index in range(5):
        si = 0.3 * layout.scale.si_high * np.sin(index + np.arange(6))
        result = embodiment.step(Action(si))
        observation, reward, _, _, info = env.step(layout.scale.from_si(si))
        np.testing.assert_array_equal(result.observation.state["joint_pos"], observation["joints_position"])
        assert result.reward == reward
        assert result.info["action"]["applied_si"] == info["action"]["applied_si"]
    env.close()


def test_the_gate_limits_approved_actions_and_reports_it(make):
    embodiment = make()
    embodiment.reset(SCENE, seed=1)
    result = embodiment.step(Action(100.0 * embodiment.info.action_space.high))
    assert result.info["safety"]["intervened"]
    limits = ActionLayout(ARM).limits
    reach_rad = limits.acceleration * ARM.control_period_s**2  # from rest
    assert np.all(np.abs(embodiment.env.last_transition.report.applied_si) <= reach_rad + 1e-9)


@pytest.mark.parametrize("data", [np.full(6, np.nan), np.zeros(4), np.zeros((2, 3))])
def test_a_malformed_action_brakes(make, data):
    embodiment = make()
    embodiment.reset(SCENE, seed=1)
    assert embodiment.step(Action(data)).info["safety"]["disposition"] == Severity.HOLD


def test_the_declared_reset_options_place_the_target(make):
    embodiment = make(backend="mujoco")
    target = [-0.5, 0.1, 0.3]
    seen = embodiment.reset(Scene(id="a", instruction="", target=Target("reset_options", {"target": target})), seed=1)
    np.testing.assert_allclose(seen.state["target_position"], target, atol=1e-6)


@pytest.mark.parametrize(
    ("scene", "problem"),
    [
        (Scene(id="a", instruction="", setup="pour_water"), "'pour_water'"),
        (Scene(id="a", instruction="", target=Target("cup")), "'cup'"),
        (Scene(id="a", instruction="", target=Target("reset_options", {"door": 1})), "door"),
    ],
)
def test_an_unsupported_scene_is_rejected(make, scene, problem):
    with pytest.raises(UsageError, match=problem):
        make().reset(scene)


def test_the_compatibility_check_rejects_an_unsupported_scene_before_any_motion(make, tmp_path):
    embodiment = make()
    with pytest.raises(CompatibilityError, match="target kind 'cup'"):
        evaluate(tmp_path, embodiment, rest, scenes=[Scene(id="a", instruction="", target=Target("cup"))])
    assert embodiment.env.epoch == -1


def scripted(embodiment):
    """The scripted policy with the observations and units of inspect-robots."""
    scale = ActionLayout(ARM).scale
    ours = load_policy("scripted", ARM)
    names = embodiment._state
    return lambda seen: scale.to_si(ours({key: seen.state[theirs] for key, theirs in names.items()}))


def test_the_scripted_policy_is_scored_as_success_and_both_logs_are_complete(make, tmp_path):
    embodiment = make(backend="mujoco", record=tmp_path / "runs")
    log = evaluate(tmp_path, embodiment, scripted(embodiment), scenes=[SCENE, replace(SCENE, id="two")])
    embodiment.close()
    assert log.status == "success"
    assert [sample.epochs for sample in log.samples] == [({"success_at_end": 1.0},)] * 2
    (path,) = (tmp_path / "runs").iterdir()
    run = read_run(path)
    assert run.clean
    assert [row["info"]["end_reason"] for row in run.transitions() if row["info"]["end_reason"]] == ["success"] * 2
    assert log.eval.environment_revision == ARM.fingerprint


def test_the_same_seed_gives_the_same_episode(make):
    first, second = (make(backend="mujoco").reset(SCENE, seed=9) for _ in range(2))
    np.testing.assert_array_equal(first.state["target_position"], second.state["target_position"])


def test_a_time_limit_is_a_truncation_with_its_name(make):
    embodiment = make(replace(ARM, episode=replace(ARM.episode, horizon_steps=1)))
    embodiment.reset(SCENE, seed=1)
    result = embodiment.step(Action(np.zeros(6)))
    assert (result.terminated, result.truncated, result.termination_reason) == (False, True, "time_limit")


def test_a_lost_world_halts_the_evaluation_and_is_never_scored(make, tmp_path):
    embodiment = make(faults=(Fault(kind="refuse", step=3),))
    log = evaluate(tmp_path, embodiment, rest, scenes=[SCENE, replace(SCENE, id="two")])
    assert log.status == "error"
    assert "backend_lost:refused" in log.error
    assert [sample.epochs for sample in log.samples] == [({},)]
    assert embodiment.env.epoch == 0


def test_an_estop_halts_the_evaluation(make):
    embodiment = make()
    embodiment.reset(SCENE, seed=1)
    embodiment.env._stepper.backend.estop_states = {"door": "active"}
    with pytest.raises(SafetyAbort, match=r"estop\.active"):
        embodiment.step(Action(np.zeros(6)))


def test_default_guardrails_can_be_derived_for_absolute_positions(make):
    space = make("door_open").info.action_space
    limits = ActionLayout(embodied_env.load_contract("door_open")).limits
    assert space.semantics.max_step == pytest.approx(limits.fastest * 0.05)
    DeltaLimitApprover(space)


def test_mixed_commands_are_rejected(make):
    arm = ARM.actuators["arm"]
    joints = dict(arm.joints)
    wrist = {name: joints.pop(name) for name in ("j4", "j5", "j6")}
    turning = replace(arm, joints=wrist, topic="wrist/commands", command="velocity")
    with pytest.raises(UsageError, match="position_delta, velocity"):
        make(replace(ARM, actuators={"arm": replace(arm, joints=joints), "wrist": turning}))


def test_the_inspect_robots_cli_finds_the_entry_point():
    setup = (Path(embodied_env.__file__).parent.parent / "setup.py").read_text(encoding="utf-8")
    (entry,) = re.findall(r'"inspect_robots\.embodiments": \["(\w+) = ([\w.:]+)"\]', setup)
    assert entry[0] == "embodied_env"
    assert EntryPoint(entry[0], entry[1], "inspect_robots.embodiments").load() is EmbodiedEmbodiment


def test_a_missing_package_error_names_the_extra():
    script = "import sys; sys.modules['inspect_robots'] = None; import embodied_env.envs.adapters.inspect_robots"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'pip install "embodied_env[inspect]"' in done.stderr
