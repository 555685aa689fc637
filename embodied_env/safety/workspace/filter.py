"""Scale a motion down so that the robot's capsules keep their distances.

A *row* is one distance d(q) less the margin: of a link's capsule to a keep-out region, to the outside of a keep-in box,
or to a capsule of another link. h(q) is the smallest one. Only distances that a joint can change are rows.

Guarantee. From a state (positions x, velocities v of the last command) each joint brakes at its own deceleration D:
after k steps of dt its speed is max(0, |v| - k D dt). B(x, v) is the path through these positions, with straight
segments; it is what the gate publishes when it brakes. With constant dt, B of the next braking state is the rest of B
of this one. A share s > 0 of the way from braking to the proposed motion is granted only if in the state that it leads
to, x+ = x + v+ dt, each row keeps

    (a)  d(x+) >= d(x) - gamma max(0, d(x)),    and on the segment to x+ and along B(x+, v+)
    (b)  d >= min(0, d(x)).

By induction: let a row have d >= 0 along B of the state (true at rest with d >= 0). Either a share s > 0 is granted,
and (b) gives the same for the new state and the segment to it; or the gate brakes, moves along B, and what remains is
the rest of B. Braking needs no check of its own, so s = 0 is always admissible. A row found at d < 0 may not decrease
but may increase: moving away from a region is never refused because of that region.

Accuracy of (b). B is sampled. A stretch is accepted without samples only if the distances at its ends and the bound on
the change of the row (`MotionBounds`) exclude a dip; otherwise it is sampled so that no row changes by more than 10 mm
between two samples. Between them it may be lower by half of that: `SAMPLING_BOUND_M`, 5 mm. This does not accumulate
over steps and should be less than the margin. A stretch that needs more than `MAX_SAMPLES` is refused.

With `latency_s` every row must keep max |v| latency_s more along B, as far as it can: a late command acts further along
the path. If dt varies by up to e, braking paths differ by up to |v| e / 2 in each joint, so use e / 2 as latency (the
stopping distance is between v^2 / (2 D) - |v| dt / 2 and v^2 / (2 D)).

The filter takes the largest share of 1, 1/2, ... 0 from braking to the candidate. Row by row, (a) is the condition of a
discrete-time control barrier function: A. Agrawal and K. Sreenath, "Discrete Control Barrier Functions for
Safety-Critical Control of Discrete Systems" (RSS 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_env.contract import FloatArray, KinematicModel
from embodied_env.contract.safety_schema import WorkspaceSpec
from embodied_env.core.code_types import Severity
from embodied_env.errors import UsageError
from embodied_env.safety.command_filters import FilterDecision, ProposedCommand
from embodied_env.safety.joint_limits import JointBounds
from embodied_env.safety.workspace.clearance import Clearances, IndexArray

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)
SPACING_M = 0.01
SAMPLING_BOUND_M = SPACING_M / 2
MAX_SAMPLES = 512

_COARSE = 8  # samples of a braking path at first
_MAX_KNOTS = 128
_ROUNDING_M = 1e-12


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The share granted, and the nearest row before the motion with its distance h in m."""

    share: float
    h_m: float
    nearest: str


class Workspace:
    """Workspace of one robot, without a state."""

    def __init__(
        self,
        spec: WorkspaceSpec,
        model: KinematicModel,
        joints: tuple[str, ...],
        bounds: Sequence[JointBounds],
        *,
        path: str = "safety.workspace",
    ) -> None:
        """Build the rows.

        `joints` is the order of all positions and velocities. Of `bounds`, the limits of the gate, only the
        decelerations are used. `path` is that of `spec` in the contract.

        Raises:
            ContractError: for an unknown link, a keep-out region over the fixed base, or a robot that cannot move.
            UsageError: if joints or bounds do not match the model.
        """
        if set(joints) != set(model.joints) or len(bounds) != len(joints):
            raise UsageError(
                f"workspace does not match the kinematic model: {len(bounds)} bounds, joints {', '.join(joints)} "
                f"(expected {', '.join(model.joints)})"
            )
        self.joints = joints
        self.model = model
        self._gamma = spec.gamma
        self._decelerations = np.array([1.0 if b.is_goal else b.deceleration for b in bounds])  # a goal has no velocity
        zero = [min(max(0.0, b.low), b.high) for b in bounds]
        self._clearances = Clearances(spec, model, joints, np.array(zero), path=path)
        self._levers = self._clearances.levers.T

    def nearest(self, positions: FloatArray) -> tuple[float, str]:
        """Return the smallest distance less the margin, m, at positions (n_joints,), and its row.

        Without rows it is inf.
        """
        return self._lowest(self._clearances.measure(positions[None])[0])

    def scale(
        self,
        positions: FloatArray,
        candidate_velocities: FloatArray,
        braking_velocities: FloatArray,
        dt_s: float,
        latency_s: float = 0.0,
    ) -> Scaling:
        """Return the largest admissible share s of `SHARES`, or 0, from braking to the candidate.

        Arrays have the shape (n_joints,); `positions` are those of the last command, `latency_s` its largest delay.
        The share is 0 for values that are not finite and for dt <= 0.
        """
        wanted = candidate_velocities - braking_velocities
        if not (np.isfinite(positions).all() and np.isfinite(wanted).all() and dt_s > 0.0 and latency_s >= 0.0):
            return Scaling(share=0.0, h_m=float("nan"), nearest=f"positions {positions}, velocities {wanted}, {dt_s} s")
        now = self._clearances.measure(positions[None])[0]
        h_m, nearest = self._lowest(now)
        share = 1.0
        if now.size and wanted.any():
            tried = (
                s for s in SHARES if self._allows(now, positions, braking_velocities + s * wanted, dt_s, latency_s)
            )
            share = next(tried, 0.0)
        return Scaling(share=share, h_m=h_m, nearest=nearest)

    def _lowest(self, distances: FloatArray) -> tuple[float, str]:
        if not distances.size:
            return float("inf"), "nothing"
        row = int(np.argmin(distances))
        return float(distances[row]), self._clearances.names[row]

    def _allows(
        self, now: FloatArray, positions: FloatArray, velocities: FloatArray, dt_s: float, latency_s: float
    ) -> bool:
        """Return whether (a) and (b) are true for the state that these velocities lead to."""
        knots = self._knots(positions, velocities, dt_s)
        changes = np.abs(np.diff(knots, axis=0)) @ self._levers  # largest change of each row between two knots
        lowest_next = now - self._gamma * np.maximum(now, 0.0)
        lowest = np.minimum(now, latency_s * (np.abs(velocities) @ self._levers))
        near = (now - changes[0] < lowest_next) | (now - changes.sum(axis=0) < lowest)
        rows = np.flatnonzero(near)
        if not rows.size:
            return True
        return self._path_is_clear(knots, changes[:, rows], rows, now[rows], (lowest_next[rows], lowest[rows]))

    def _knots(self, positions: FloatArray, velocities: FloatArray, dt_s: float) -> FloatArray:
        """Return the knots of the step and of the braking path after it, shape (k, n_joints).

        After k steps of braking a joint has moved |v| k dt - D dt^2 k (k + 1) / 2, until it is at rest. Long paths are
        thinned out, which is safe because a joint does not turn back between knots.
        """
        speeds, drop = np.abs(velocities), self._decelerations * dt_s
        moving = np.floor(np.minimum(speeds / drop, 1e9))
        most = float(moving.max())
        ticks = np.arange(most + 1) if most <= _MAX_KNOTS else np.rint(np.linspace(0.0, most, _MAX_KNOTS + 1))
        braked = np.minimum(ticks[:, None], moving)
        gone = (speeds * braked - drop * (braked * (braked + 1.0) / 2.0)) * dt_s
        return np.concatenate([positions[None], positions + velocities * dt_s + np.sign(velocities) * gone])

    def _path_is_clear(
        self,
        knots: FloatArray,
        changes: FloatArray,
        rows: IndexArray,
        now: FloatArray,
        lowest: tuple[FloatArray, FloatArray],
    ) -> bool:
        """Return whether these rows keep their minimum at the next positions and on the path."""
        lowest_next, lowest_on_path = lowest[0] - _ROUNDING_M, lowest[1] - _ROUNDING_M
        ways = np.concatenate([[0.0], np.cumsum(changes.max(axis=1))])  # largest change of any row up to each knot
        coarse = np.concatenate([[0.0], np.linspace(ways[1], ways[-1], _COARSE)])
        distances = np.concatenate([now[None], self._measure_along(knots, ways, coarse[1:], rows)])
        if (distances[1] < lowest_next).any() or (distances < lowest_on_path).any():
            return False
        gaps = np.diff(coarse)
        dips = (distances[:-1] + distances[1:] - gaps[:, None]) / 2.0 < lowest_on_path
        doubtful = np.flatnonzero(dips.any(axis=1) & (gaps > SPACING_M))
        counts = np.ceil(gaps[doubtful] / SPACING_M).astype(np.intp)
        if not doubtful.size:
            return True
        if counts.sum() > MAX_SAMPLES:
            return False
        fine = np.concatenate(
            [np.linspace(coarse[i], coarse[i + 1], n + 1)[1:-1] for i, n in zip(doubtful, counts, strict=True)]
        )
        dipping = dips[doubtful].any(axis=0)
        return bool((self._measure_along(knots, ways, fine, rows[dipping]) >= lowest_on_path[dipping]).all())

    def _measure_along(self, knots: FloatArray, ways: FloatArray, at: FloatArray, rows: IndexArray) -> FloatArray:
        """Return the rows' distances at the path parameters `at`, shape (len(at), len(rows))."""
        before = np.clip(np.searchsorted(ways, at, side="right") - 1, 0, len(ways) - 2)
        lengths = ways[before + 1] - ways[before]
        parts = np.clip((at - ways[before]) / np.where(lengths > 0.0, lengths, 1.0), 0.0, 1.0)[:, None]
        return self._clearances.measure(knots[before] * (1.0 - parts) + knots[before + 1] * parts, rows)


class WorkspaceFilter:
    """Command filter `workspace`, which grants the share of a motion that stays inside it.

    It must be the last filter, since a smaller share than the granted one is not checked.
    """

    def __init__(self, workspace: Workspace, *, latency_s: float = 0.0) -> None:
        """Create the filter for commands delayed by up to `latency_s`, plus half dt's variation."""
        self._workspace = workspace
        self.model = workspace.model
        self._latency_s = latency_s
        self.is_kept = False  # whether the robot was in its workspace at the last step

    def reset(self) -> None:
        """Begin an episode, in which `is_kept` is False until the first step."""
        self.is_kept = False

    def filter(self, proposal: ProposedCommand) -> FilterDecision | None:
        """Return None for the whole motion, LIMIT with the share, or HOLD."""
        places = [proposal.joints.index(joint) for joint in self._workspace.joints]
        scaling = self._workspace.scale(
            proposal.positions[places],
            proposal.velocities[places],
            proposal.braking[places],
            proposal.dt_s,
            self._latency_s,
        )
        self.is_kept = scaling.h_m >= 0.0
        if scaling.share == 1.0:
            return None
        severity = Severity.LIMIT if scaling.share > 0.0 else Severity.HOLD
        return FilterDecision(
            severity=severity, share=scaling.share, detail=f"{scaling.nearest}: {scaling.h_m:.4f} m left"
        )
