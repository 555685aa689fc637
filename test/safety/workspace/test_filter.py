"""Cases of the workspace filter, for a planar arm of two links and the six-axis arm."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shipped_contracts import changed_contract

from embodied_env.contract import load_contract
from embodied_env.contract.contract_validation import check_workspace
from embodied_env.contract.safety_schema import BoxSpec, CapsuleSpec, KeepOutSpec, SphereSpec, WorkspaceSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.urdf import UrdfRobot, parse_urdf
from embodied_env.core.code_types import Severity
from embodied_env.errors import ContractError, UsageError
from embodied_env.safety.command_filters import ProposedCommand
from embodied_env.safety.joint_limits import JointBounds, joint_bounds
from embodied_env.safety.workspace.filter import Scaling, Workspace, WorkspaceFilter
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile

DATA = Path(__file__).parents[2] / "support" / "data"
BOUNDS = JointBounds(low=-6.3, high=6.3, velocity_low=-3.0, velocity_high=3.0, acceleration=8.0, deceleration=10.0)
WALL = KeepOutSpec(box=BoxSpec(low_m=(-2.0, 0.3, -1.0), high_m=(2.0, 0.5, 1.0)))
DT_S = 0.05
STRAIGHT = np.zeros(2)
REST = np.zeros(2)


def planar() -> UrdfRobot:
    return parse_urdf((DATA / "planar.urdf").read_bytes())


def workspace(model: UrdfRobot | None = None, **spec) -> Workspace:
    model = model or planar()
    return Workspace(
        WorkspaceSpec(**{"keep_out": {"wall": WALL}, **spec}), model, model.joints, [BOUNDS] * len(model.joints)
    )


def scale(of: Workspace, positions, velocities, **kwargs) -> Scaling:
    """Scale velocities that are reached at once, from rest."""
    return of.scale(np.array(positions), np.array(velocities), np.zeros(len(velocities)), DT_S, **kwargs)


def test_h_is_the_smallest_distance_less_the_margin():
    assert workspace(margin_m=0.02).nearest(STRAIGHT)[0] == pytest.approx(0.3 - 0.04 - 0.02)


def test_nearest_row_is_named():
    h_m, nearest = workspace().nearest(np.array([0.1, 0.1]))
    assert nearest == "fore to keep_out.wall"
    assert h_m == pytest.approx(0.3 - 0.5 * np.sin(0.1) - 0.5 * np.sin(0.2) - 0.06)


def test_keep_out_regions_may_be_spheres_and_capsules():
    ball = KeepOutSpec(sphere=SphereSpec(center_m=(0.5, 0.5, 0.0), radius_m=0.1))
    rod = KeepOutSpec(capsule=CapsuleSpec(ends_m=((0.5, -0.3, -1.0), (0.5, -0.3, 1.0)), radius_m=0.1))
    assert workspace(keep_out={"ball": ball}).nearest(STRAIGHT)[0] == pytest.approx(0.5 - 0.1 - 0.06)
    assert workspace(keep_out={"ball": ball, "rod": rod}).nearest(STRAIGHT)[0] == pytest.approx(0.3 - 0.1 - 0.06)


def test_keep_in_box_applies_to_every_moving_link():
    cell = BoxSpec(low_m=(-2.0, -2.0, -0.05), high_m=(1.2, 2.0, 1.0))  # the post is outside, but cannot move
    h_m, nearest = workspace(keep_out={}, keep_in={"cell": cell}, margin_m=0.0).nearest(STRAIGHT)
    assert h_m == pytest.approx(0.01)  # the floor, under the upper link or the forearm
    assert "inside of keep_in.cell" in nearest


def test_adjacent_links_are_not_checked():
    _, nearest = workspace(self_collision=True, keep_out={}).nearest(np.array([0.0, 3.0]))
    assert nearest == "post to fore"


def test_ignored_pair_is_not_checked():
    spec: dict = {"self_collision": True, "ignore_pairs": (("fore", "post"),)}
    assert workspace(**spec).nearest(np.array([-1.5, 3.0]))[1] == "upper to keep_out.wall"


def test_ignored_link_is_not_checked():
    of = workspace(ignore_links=("fore",))
    assert of.nearest(np.array([0.0, 1.5]))[1] == "upper to keep_out.wall"


def test_joints_are_in_the_order_of_the_workspace():
    model = planar()
    turned = Workspace(WorkspaceSpec(keep_out={"wall": WALL}), model, ("elbow", "shoulder"), [BOUNDS, BOUNDS])
    assert turned.nearest(np.array([0.3, 0.1]))[0] == workspace().nearest(np.array([0.1, 0.3]))[0]


def test_motion_towards_a_wall_is_scaled_down():
    scaling = scale(workspace(), [0.15, 0.0], [1.5, 0.0])
    assert 0.0 < scaling.share < 1.0
    assert scaling.nearest == "fore to keep_out.wall"
    assert scaling.h_m == pytest.approx(0.3 - np.sin(0.15) - 0.06)


def test_motion_into_a_wall_is_refused():
    touching = float(np.arcsin(0.24))
    assert scale(workspace(), [touching, 0.0], [1.5, 0.0]).share == 0.0


def test_leaving_one_region_does_not_allow_entering_another():
    step = KeepOutSpec(box=BoxSpec(low_m=(0.8, 0.1, -1.0), high_m=(1.2, 0.24, 1.0)))
    of, inside_both = workspace(keep_out={"wall": WALL, "step": step}), [0.33, 0.0]
    assert scale(workspace(), inside_both, [-0.2, 0.0]).share == 1.0
    assert scale(of, inside_both, [-0.2, 0.0]).share == 0.0
    assert (of._clearances.measure(np.array([inside_both])) < 0.0).sum() == 2


def test_rest_is_granted_inside_a_wall():
    assert scale(workspace(), [0.6, 0.0], [0.0, 0.0]).share == 1.0


def test_wall_within_the_braking_path_is_detected():
    thin = KeepOutSpec(box=BoxSpec(low_m=(0.5, 0.10, -0.1), high_m=(1.5, 0.101, 0.1)))
    of = workspace(keep_out={"thin": thin}, margin_m=0.005, gamma=1.0)
    before, after = np.array([0.0, 0.0]), np.array([2.0 * DT_S + 2.0 * 2.0 / 20.0, 0.0])
    assert of.nearest(before)[0] > 0.0
    assert of.nearest(after)[0] > 0.0
    assert scale(of, before, [2.0, 0.0]).share < 1.0


def test_latency_increases_the_distance():
    of, start, velocity = workspace(gamma=1.0), [0.0, 0.0], [1.0, 0.0]
    assert scale(of, start, velocity).share == 1.0
    assert scale(of, start, velocity, latency_s=0.2).share < 1.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_unknown_position_is_rejected(broken):
    assert scale(workspace(), [broken, 0.0], [0.1, 0.0]).share == 0.0
    assert scale(workspace(), [0.0, 0.0], [broken, 0.0]).share == 0.0


def test_zero_dt_is_rejected():
    assert workspace().scale(STRAIGHT, np.ones(2), REST, 0.0).share == 0.0


def test_too_long_a_path_near_an_obstacle_is_refused():
    text = (DATA / "gripper_cart.urdf").read_text().replace('lower="-0.8" upper="1.2"', 'lower="-80" upper="120"')
    model = parse_urdf(text, ["slide"])
    of = Workspace(
        WorkspaceSpec(keep_out={"rail": KeepOutSpec(box=BoxSpec(low_m=(0.2, -90.0, 0.3), high_m=(0.3, 90.0, 0.5)))}),
        model,
        model.joints,
        [replace(BOUNDS, velocity_low=-20.0, velocity_high=20.0)],
    )
    assert of.scale(np.array([0.0]), np.array([20.0]), np.array([0.0]), DT_S).share < 1.0
    assert of.scale(np.array([0.0]), np.array([2.0]), np.array([0.0]), DT_S).share == 1.0


def proposal(velocities, positions=(0.15, 0.0)) -> ProposedCommand:
    return ProposedCommand(
        joints=("shoulder", "elbow"),
        positions=np.array(positions),
        previous=REST,
        velocities=np.array(velocities),
        braking=REST,
        dt_s=DT_S,
    )


def test_gate_passes_a_granted_motion():
    assert WorkspaceFilter(workspace()).filter(proposal([-0.5, 0.0])) is None


def test_gate_limits_to_the_share_with_a_reason():
    ruling = WorkspaceFilter(workspace()).filter(proposal([1.5, 0.0]))
    assert ruling is not None
    assert (ruling.severity, ruling.detail) == (Severity.LIMIT, "fore to keep_out.wall: 0.0906 m left")
    assert ruling.share == scale(workspace(), [0.15, 0.0], [1.5, 0.0]).share


def test_gate_holds_a_refused_motion():
    ruling = WorkspaceFilter(workspace()).filter(proposal([1.5, 0.0], (0.3, 0.0)))
    assert ruling is not None
    assert ruling.severity == Severity.HOLD


def test_self_distances_of_the_arm_at_home_are_plausible():
    contract = load_contract("arm_reach")
    model = MujocoKinematics(contract, load_profile(contract, "mujoco"))
    spec = WorkspaceSpec(self_collision=True, margin_m=0.0)
    of = Workspace(spec, model, model.joints, joint_bounds(ActionLayout(contract).limits))
    home = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])
    assert of.nearest(home)[0] > -0.005
    folded = home + np.array([0.0, 0.0, 1.3, 0.0, 0.0, 0.0])
    assert of.nearest(folded)[0] < -0.005


def test_region_over_the_fixed_base_is_rejected():
    regions = {
        "table": KeepOutSpec(box=BoxSpec(low_m=(-1.0, -1.0, -0.5), high_m=(1.0, 1.0, -0.03))),
        "ball": KeepOutSpec(sphere=SphereSpec(center_m=(0.0, 0.0, 0.1), radius_m=0.05)),
        "wall": WALL,
    }
    message = r"safety.workspace.keep_out: .*: 'post' is 0.030 m inside 'table', 'post' is 0.010 m inside 'ball';"
    with pytest.raises(ContractError, match=message):
        workspace(keep_out=regions)
    assert workspace(keep_out=regions, ignore_links=("post",)).nearest(STRAIGHT)[0] < 0.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"ignore_links": ("fre",)}, r"ignore_links\[0\]: unknown link: 'fre' .*did you mean 'fore'"),
        ({"ignore_pairs": (("post", "uper"),)}, r"ignore_pairs\[0\]: .*did you mean 'upper'"),
        ({"ignore_links": ("fore", "upper")}, "no joint moves a link that is checked"),
    ],
)
def test_unknown_link_is_named(spec, message):
    with pytest.raises(ContractError, match=message):
        workspace(**spec)


def test_joints_of_another_robot_are_rejected():
    with pytest.raises(UsageError, match=r"2 bounds, joints shoulder, wrist \(expected shoulder, elbow\)"):
        Workspace(WorkspaceSpec(keep_out={"wall": WALL}), planar(), ("shoulder", "wrist"), [BOUNDS, BOUNDS])


def test_unbounded_prismatic_joint_after_a_revolute_one_is_rejected():
    text = (
        (DATA / "planar.urdf")
        .read_text()
        .replace('<joint name="elbow" type="revolute">', '<joint name="elbow" type="prismatic">')
    )
    endless = parse_urdf(text.replace('<limit lower="-6.3" upper="6.3" velocity="3" effort="50"/>', ""))
    with pytest.raises(ContractError, match="reach of these links is unbounded: fore"):
        workspace(endless)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"keep_out": {}}, "safety.workspace"),
        ({"keep_out": {"a": {}}}, "safety.workspace.keep_out.a"),
        ({"keep_in": {"a": {"low_m": [0, 0, 0], "high_m": [1, 0, 1]}}}, "safety.workspace.keep_in.a"),
    ],
)
def test_violated_contract_rule_is_named(spec, path):
    with pytest.raises(ContractError, match="expected") as caught:
        changed_contract("arm_reach", {"safety.workspace": spec})
    assert caught.value.path == path


def test_mobile_robot_has_no_workspace():
    with pytest.raises(ContractError, match="takes a twist"):
        check_workspace(
            "safety.workspace", WorkspaceSpec(keep_out={"wall": WALL}), load_contract("cart_goal").actuators
        )
