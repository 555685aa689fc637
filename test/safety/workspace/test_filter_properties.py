"""The workspace filter is stepped like the gate, with joint limits first, then the share, or braking.

Distances are those of `Workspace.h`, which ``test/safety/workspace/test_capsules.py`` checks.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from safety_strategies import costly
from single_joint import limit_velocity

from embodied_env.contract import load_contract
from embodied_env.contract.safety_schema import BoxSpec, CapsuleSpec, KeepOutSpec, SphereSpec, WorkspaceSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.urdf import parse_urdf
from embodied_env.safety.joint_limits import JointBounds, brake_velocity, joint_bounds
from embodied_env.safety.workspace.filter import SAMPLING_BOUND_M, SHARES, Workspace
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_profile import load_profile

PLANAR = parse_urdf((Path(__file__).parents[2] / "support" / "data" / "planar.urdf").read_bytes())
PLANAR_BOUNDS = [
    JointBounds(low=-6.3, high=6.3, velocity_low=-3.0, velocity_high=3.0, acceleration=8.0, deceleration=10.0)
] * 2
CONTRACT = load_contract("arm_reach")
ARM = MujocoKinematics(CONTRACT, load_profile(CONTRACT, "mujoco"))
ARM_BOUNDS = joint_bounds(ActionLayout(CONTRACT).limits)
HOME = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])

coordinates = st.floats(-1.0, 1.0)


def triples(*axes: st.SearchStrategy[float]):
    return st.tuples(*axes)


@st.composite
def regions(draw) -> KeepOutSpec:
    center = np.array(draw(triples(coordinates, coordinates, st.floats(-0.2, 0.6))))
    size = np.array(draw(triples(*[st.sampled_from([0.01, 0.05, 0.2])] * 3)))
    kind = draw(st.sampled_from(["box", "sphere", "capsule"]))
    if kind == "box":
        return KeepOutSpec(box=BoxSpec(low_m=tuple(center - size), high_m=tuple(center + size)))
    if kind == "sphere":
        return KeepOutSpec(sphere=SphereSpec(center_m=tuple(center), radius_m=float(size[0])))
    ends = (tuple(center - size), tuple(center + size))
    return KeepOutSpec(capsule=CapsuleSpec(ends_m=ends, radius_m=float(size[1])))


@st.composite
def specs(draw) -> WorkspaceSpec:
    keep_out = {f"region{i}": region for i, region in enumerate(draw(st.lists(regions(), min_size=1, max_size=3)))}
    keep_in = {"cell": BoxSpec(low_m=(-0.9, -0.8, -0.3), high_m=(0.9, 0.8, 1.2))} if draw(st.booleans()) else {}
    return WorkspaceSpec(
        keep_in=keep_in,
        keep_out=keep_out,
        self_collision=draw(st.booleans()),
        ignore_links=tuple(draw(st.sampled_from([(), ("base", "post")]))),
        margin_m=draw(st.sampled_from([0.0, 0.02])),
        gamma=draw(st.sampled_from([0.05, 0.2, 1.0])),
    )


def made(spec: WorkspaceSpec, model, bounds) -> Workspace:
    links = set(model.capsules(np.zeros(len(bounds))).links)
    ignored = tuple(link for link in spec.ignore_links if link in links)
    spec = WorkspaceSpec(**{**vars(spec), "ignore_links": ignored})
    try:
        return Workspace(spec, model, model.joints, bounds)
    except ValueError:  # a region in the base
        assume(False)
        raise


class Mover:
    """Step like the gate with a velocity interval for each joint, then the largest share, or braking."""

    def __init__(self, workspace: Workspace, positions: np.ndarray, bounds: list[JointBounds], latency_s: float = 0.0):
        self.workspace, self.bounds, self.latency_s = workspace, bounds, latency_s
        self.positions, self.velocities = positions.copy(), np.zeros(len(bounds))

    def step(self, wanted: np.ndarray, dt_s: float) -> float:
        state = zip(self.positions, self.velocities, wanted, self.bounds, strict=True)
        candidate = np.array([limit_velocity(x, v, w, b, dt_s).velocity for x, v, w, b in state])
        braking = np.array([brake_velocity(v, b, dt_s) for v, b in zip(self.velocities, self.bounds, strict=True)])
        scaling = self.workspace.scale(self.positions, candidate, braking, dt_s, self.latency_s)
        self.velocities = braking + scaling.share * (candidate - braking)
        self.is_granted = scaling.share > 0.0 and not np.array_equal(candidate, braking)
        start, self.positions = self.positions, self.positions + self.velocities * dt_s
        self.between = start + np.linspace(0.0, 1.0, 6)[1:, None] * (self.positions - start)
        return scaling.share


def lowest_on(mover: Mover) -> np.ndarray:
    """Return the lowest value of each distance within the last step."""
    return mover.workspace._clearances.measure(mover.between).min(axis=0)


def desired_velocities(kind: str, rng: np.random.Generator, k: int, n: int, held: np.ndarray) -> np.ndarray:
    if kind == "max":
        return held if k % 15 else rng.choice([-3.0, 3.0], n)
    if kind == "alternating":
        return 3.0 * (-1.0) ** (k // 3) * np.sign(held)
    return rng.uniform(-3.0, 3.0, n)


def journey(mover: Mover, kind: str, seed: int, steps: int, times) -> float:
    """Return the lowest h of a journey."""
    rng, lowest = np.random.default_rng(seed), np.inf
    wanted = rng.choice([-3.0, 3.0], len(mover.bounds))
    for k in range(steps):
        wanted = desired_velocities(kind, rng, k, len(mover.bounds), wanted)
        mover.step(wanted, times(rng))
        lowest = min(lowest, float(lowest_on(mover).min()))
    return lowest


kinds = st.sampled_from(["max", "alternating", "random"])
seeds = st.integers(0, 2**32 - 1)
angles = st.floats(-2.0, 2.0)


@costly(20)
@given(specs(), st.tuples(angles, angles), kinds, seeds, st.sampled_from([0.002, 0.02, 0.05, 0.1]))
def test_planar_arm_never_leaves_its_workspace(spec, start, kind, seed, dt_s):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    assume(workspace.nearest(np.array(start))[0] >= 0.0)
    mover = Mover(workspace, np.array(start), PLANAR_BOUNDS)
    assert journey(mover, kind, seed, 60, lambda _: dt_s) >= -SAMPLING_BOUND_M


@costly(15)
@given(specs(), kinds, seeds)
def test_six_axis_arm_never_leaves_its_workspace(spec, kind, seed):
    pairs = (("base", "link2"), ("link3", "link5"), ("link4", "link6"))
    workspace = made(WorkspaceSpec(**{**vars(spec), "ignore_pairs": pairs, "ignore_links": ("base",)}), ARM, ARM_BOUNDS)
    assume(workspace.nearest(HOME)[0] >= 0.0)
    mover = Mover(workspace, HOME, ARM_BOUNDS)
    assert journey(mover, kind, seed, 60, lambda _: 0.05) >= -SAMPLING_BOUND_M


@costly(20)
@given(specs(), st.tuples(angles, angles), kinds, seeds)
def test_latency_of_half_the_dt_variation_covers_unequal_steps(spec, start, kind, seed):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    assume(workspace.nearest(np.array(start))[0] >= 0.0)
    mover = Mover(workspace, np.array(start), PLANAR_BOUNDS, latency_s=0.025)
    assert journey(mover, kind, seed, 60, lambda rng: rng.uniform(0.001, 0.05)) >= -SAMPLING_BOUND_M


WALL = KeepOutSpec(box=BoxSpec(low_m=(-2.0, 0.3, -1.0), high_m=(2.0, 2.0, 1.0)))


@costly(12)
@given(st.floats(-0.6, 0.2), st.floats(-0.5, 0.1), st.sampled_from([0.2, 1.0]), st.sampled_from([0.02, 0.05, 0.1]))
def test_full_speed_towards_a_wall_stops_before_it(shoulder, elbow, gamma, dt_s):
    spec = WorkspaceSpec(keep_out={"wall": WALL}, gamma=gamma, margin_m=0.0)
    mover = Mover(Workspace(spec, PLANAR, PLANAR.joints, PLANAR_BOUNDS), np.array([shoulder, elbow]), PLANAR_BOUNDS)
    for _ in range(round(1.0 / dt_s)):
        mover.step(np.array([3.0, 3.0]), dt_s)
        assert lowest_on(mover).min() >= -SAMPLING_BOUND_M
    assert mover.workspace.nearest(mover.positions)[0] < 0.25


@costly(12)
@given(st.floats(-0.6, 0.2), st.floats(-0.5, 0.1), st.integers(1, 12))
def test_robot_stops_before_the_wall_with_shorter_steps(shoulder, elbow, long_steps):
    spec = WorkspaceSpec(keep_out={"wall": WALL}, gamma=1.0, margin_m=0.0)
    workspace = Workspace(spec, PLANAR, PLANAR.joints, PLANAR_BOUNDS)
    mover = Mover(workspace, np.array([shoulder, elbow]), PLANAR_BOUNDS, latency_s=0.025)
    for k in range(long_steps + 120):
        mover.step(np.array([3.0, 3.0]) if k < long_steps else mover.velocities, 0.05 if k < long_steps else 0.002)
        assert lowest_on(mover).min() >= -SAMPLING_BOUND_M


@costly(40)
@given(specs(), st.tuples(angles, angles), seeds)
def test_granted_step_shrinks_a_distance_by_at_most_its_share(spec, start, seed):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    mover, rng = Mover(workspace, np.array(start), PLANAR_BOUNDS), np.random.default_rng(seed)
    for _ in range(20):
        before = workspace._clearances.measure(mover.positions[None])[0]
        mover.step(rng.uniform(-3.0, 3.0, 2), 0.05)
        if mover.is_granted:
            after = workspace._clearances.measure(mover.positions[None])[0]
            assert (after >= before - spec.gamma * np.maximum(before, 0.0) - 1e-9).all()


@costly(20)
@given(specs(), st.tuples(angles, angles), kinds, seeds)
def test_violated_distance_never_decreases(spec, start, kind, seed):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    first = workspace._clearances.measure(np.array([start]))[0]
    assume((first < 0.0).any())
    mover = Mover(workspace, np.array(start), PLANAR_BOUNDS)
    rng, wanted = np.random.default_rng(seed), np.array([3.0, -3.0])
    for k in range(40):
        wanted = desired_velocities(kind, rng, k, 2, wanted)
        mover.step(wanted, 0.05)
        assert (lowest_on(mover) >= np.minimum(first, 0.0) - SAMPLING_BOUND_M - 1e-9).all()


@costly(40)
@given(specs(), st.tuples(angles, angles), st.sampled_from([(1, 0), (-1, 0), (0, 1), (0, -1)]), st.floats(0.01, 0.5))
def test_motion_that_approaches_nothing_is_granted_in_full(spec, start, direction, speed):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    positions, velocities = np.array(start), speed * np.array(direction, dtype=float)
    way = positions + np.linspace(0.0, 1.0, 200)[:, None] * velocities * (0.05 + speed / 20.0)
    distances = workspace._clearances.measure(way)
    assume((distances >= distances[0] - 1e-15).all())
    assert workspace.scale(positions, velocities, np.zeros(2), 0.05).share == 1.0


@costly(60)
@given(st.tuples(angles, angles), st.tuples(angles, angles))
def test_full_motion_is_granted_far_from_obstacles(start, velocities):
    far = KeepOutSpec(sphere=SphereSpec(center_m=(9.0, 0.0, 0.0), radius_m=1.0))
    workspace = Workspace(WorkspaceSpec(keep_out={"far": far}), PLANAR, PLANAR.joints, PLANAR_BOUNDS)
    assert workspace.scale(np.array(start), np.array(velocities), np.zeros(2), 0.05).share == 1.0


@costly(60)
@given(specs(), st.tuples(angles, angles), st.tuples(angles, angles))
def test_largest_admissible_share_is_granted(spec, start, velocities):
    workspace = made(spec, PLANAR, PLANAR_BOUNDS)
    positions, wanted = np.array(start), np.array(velocities)
    granted = workspace.scale(positions, wanted, np.zeros(2), 0.05).share
    assume(wanted.any())
    for share in SHARES:
        alone = workspace.scale(positions, share * wanted, np.zeros(2), 0.05).share
        assert (alone == 1.0) == (share == granted) or share < granted


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_arm_does_not_collide_with_its_base(rate):
    workspace = Workspace(WorkspaceSpec(self_collision=True, margin_m=0.01), PLANAR, PLANAR.joints, PLANAR_BOUNDS)
    mover = Mover(workspace, np.array([0.0, 0.5]), PLANAR_BOUNDS)
    lowest = min(
        workspace.nearest(mover.positions)[0] for _ in range(100) if mover.step(np.array([0.0, rate]), 0.05) >= 0.0
    )
    assert -SAMPLING_BOUND_M <= lowest <= 0.03
    assert mover.velocities == pytest.approx(0.0, abs=1e-6)
