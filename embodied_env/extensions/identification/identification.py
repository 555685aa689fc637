"""Fit the model to recorded runs, with intervals and which values stay undetermined.

Rollouts of recorded segments are compared with the readings, by least squares. The intervals are those of a bootstrap
of segments: each replicate draws segments, and centres of the priors, and takes one step of the fit with them.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from embodied_env._version import __version__
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.errors import UsageError
from embodied_env.extensions.identification.parameter_fit import ParameterFit
from embodied_env.extensions.identification.recorded_motion import (
    IdentificationError,
    MotionSegment,
    RunMotion,
    read_motion,
)
from embodied_env.extensions.identification.rollouts import Parameter, Rollouts
from embodied_env.extensions.report.charts import Interval, Line, interval_chart, line_chart
from embodied_env.extensions.report.html_pages import render_page
from embodied_env.record.manifest import write_text
from embodied_env.record.run import Run, read_run
from embodied_env.record.step_values import CommandedJoint, commanded_joints
from embodied_env.sim.identified_parameters import (
    IdentifiedModel,
    IdentifiedParameter,
    Kind,
    Residual,
    UndeterminedParameter,
    parameter_name,
)
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import NS_PER_S, SteadyClock

JOINT_KINDS: tuple[Kind, ...] = ("gain", "damping", "friction_loss", "armature")
"""The kinds of parameters that belong to joints."""

_HELD_OUT = 4  # each fourth segment
_WARM_UP = 0.5  # of a segment
_SHORTEST_S, _LONGEST_S = 0.1, 100.0  # of a segment
_LEAST_SEGMENTS = 8
_SEGMENTS_PER_PARAMETER = 2
_MOST_SEGMENTS = 400
_MOST_TRACES = 3  # of a joint
_NOISES, _UNEXPLAINED = 2.0, 0.05  # residuals that a model does not explain: in RMS of the noise, share of the motion


@dataclass(frozen=True, kw_only=True)
class HeldOutTrace:
    """A joint in a held-out segment, measured and simulated before and after the fit."""

    title: str
    joint: CommandedJoint
    times_s: FloatArray
    measured: FloatArray
    before: FloatArray
    after: FloatArray


@dataclass(frozen=True, kw_only=True)
class Identification:
    """Result of a fit, which is the content of its file and of the report.

    `gaps` counts by run what ended stretches of steps early. `is_better` is whether the identified values are nearer to
    the held-out data than those of the model.
    """

    model: IdentifiedModel
    gaps: Mapping[str, Counter[str]]
    traces: Sequence[HeldOutTrace] = field(default=(), repr=False)

    @property
    def is_better(self) -> bool:
        """Whether the identified values reproduce held-out data of all joints better."""
        ratios = [each.after / max(each.before, 1e-12) for each in self.model.residuals.values()]
        return bool(self.model.parameters) and float(np.mean(np.log(np.maximum(ratios, 1e-12)))) < 0.0


def identify(
    runs: Sequence[str | Path | Run],
    contract: Contract,
    parameters: Sequence[Parameter] = (),
    *,
    backend: str = "mujoco",
    segment_s: float = 1.0,
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
) -> Identification:
    """Fit parameters of the model of ``backends.<backend>`` to the motion in `runs`.

    The fit starts at the model's own values, without those of the key ``identified``. By default its parameters are
    those of `default_parameters`. Each fourth segment of `segment_s` is held out; half a segment before the start of
    each is simulated, and not compared. The `seed` is that of the bootstrap.

    Raises:
        IdentificationError: for runs that are not sound, of another robot, without motion, or too short.
        UsageError: for a parameter that is given twice, or a segment that is too short or long.
        ContractError: for a name that model or contract lack.
        MissingDependencyError: when MuJoCo, scipy or mcap is not installed.
    """
    if not _SHORTEST_S <= segment_s <= _LONGEST_S:
        raise UsageError(f"invalid segment_s: {segment_s} (expected {_SHORTEST_S} to {_LONGEST_S} s)")
    steps = [max(1, round(share * segment_s / contract.control_period_s)) for share in (1.0, _WARM_UP)]
    motions = []
    progress.start("runs", len(runs))
    for run in runs:
        opened = run if isinstance(run, Run) else read_run(run)
        motions.append(read_motion(opened, contract, segment_steps=steps[0], warm_up_steps=steps[1]))
        progress.advance()
    sources = Counter(motion.source.sha256 for motion in motions)
    if again := [motion.source.name for motion in motions if sources[motion.source.sha256] > 1]:
        raise UsageError(f"run given twice: {' and '.join(again)} have the same rows (expected each run once)")
    chosen = list(parameters) or default_parameters(contract)
    given = Counter((each.kind, name) for each in chosen for name in each.of or ("",))
    if (twice := given.most_common(1)[0])[1] > 1:
        raise UsageError(f"parameter given twice: {parameter_name(twice[0][0], twice[0][1:])} (expected once)")
    moved = set[str]().union(*(motion.moved for motion in motions))
    active = [i for i, each in enumerate(chosen) if each.kind not in JOINT_KINDS or moved & set(each.of)]
    if not active:
        names = ", ".join(each.name for each in chosen)
        raise IdentificationError(
            f"nothing to fit: the joints of {names} did not move (expected motion of at least one)"
        )
    fitted, held_out = _split(motions, len(active))
    profile, path = replace(load_profile(contract, backend), identified=None), f"backends.{backend}"
    joints = commanded_joints(contract)
    rollouts = Rollouts(contract, profile, path, fitted, chosen)
    progress.start("rollouts", None)
    fit = ParameterFit(rollouts, chosen, active, joints, progress)
    found = fit.estimate(seed)
    reasons = [fit.why_undetermined(i, found) if i in active else "its joints did not move" for i in range(len(chosen))]
    determined = [i for i, reason in enumerate(reasons) if not reason]
    final = rollouts.values.copy()
    final[determined] = found.values[determined]
    tested = Rollouts(contract, profile, path, held_out, chosen)
    before, after = (near_readings(tested, tested.simulate(values), joints) for values in (rollouts.values, final))
    model = IdentifiedModel(
        contract=contract.name,
        fingerprint=contract.fingerprint,
        created_utc=datetime.fromtimestamp(SteadyClock().system_ns() // NS_PER_S, UTC).isoformat(),
        versions={
            "embodied_env": __version__,
            **{name: importlib.metadata.version(name) for name in ("mujoco", "numpy", "scipy")},
        },
        runs=tuple(motion.source for motion in motions),
        segments=len(fitted),
        held_out=len(held_out),
        parameters=tuple(
            IdentifiedParameter(
                kind=chosen[i].kind,
                of=chosen[i].of,
                value=found.values[i].item(),
                low=found.low[i].item(),
                high=found.high[i].item(),
                model=rollouts.values[i].item(),
            )
            for i in determined
        ),
        undetermined=tuple(
            UndeterminedParameter(kind=each.kind, of=each.of, model=value, reason=reason)
            for each, value, reason in zip(chosen, rollouts.values.tolist(), reasons, strict=True)
            if reason
        ),
        correlation=tuple(tuple(found.correlation[i, k].item() for k in determined) for i in determined),
        unexplained=tuple(joints[index].name for index in unexplained_joints(tested, after)),
        residuals={
            joints[index].name: Residual(before=_rms(tested, before, index), after=_rms(tested, after, index))
            for index in dict.fromkeys(tested.joints.tolist())
        },
    )
    gaps = {motion.source.name: motion.gaps for motion in motions}
    return Identification(model=model, gaps=gaps, traces=_traces(tested, held_out, joints, before, after))


def default_parameters(contract: Contract) -> list[Parameter]:
    """Return each of `JOINT_KINDS` for each measured joint, and the delay of commands."""
    joints = [joint.name for joint in commanded_joints(contract) if joint.sensor]
    return [
        *(Parameter(kind=kind, of=(joint,)) for kind in JOINT_KINDS for joint in joints),
        Parameter(kind="command_delay"),
    ]


def _split(motions: Sequence[RunMotion], parameters: int) -> tuple[list[MotionSegment], list[MotionSegment]]:
    """Return segments to fit and held-out ones, or raise IdentificationError for too few."""
    segments = [segment for motion in motions for segment in motion.segments]
    segments = segments[:: -(-len(segments) // _MOST_SEGMENTS) or 1]
    held_out = segments[_HELD_OUT - 1 :: _HELD_OUT]
    fitted = [segment for index, segment in enumerate(segments) if index % _HELD_OUT != _HELD_OUT - 1]
    least = max(_LEAST_SEGMENTS, _SEGMENTS_PER_PARAMETER * parameters)
    if len(fitted) < least:
        gaps = sum((motion.gaps for motion in motions), Counter[str]())
        why = "".join(f", {count} {kind}" for kind, count in gaps.most_common())
        problem = f"{len(fitted)} segments without a gap{why} (expected {least} for {parameters} parameters)"
        raise IdentificationError(f"too little data: {problem}; record longer runs, or fit fewer parameters")
    return fitted, held_out


def near_readings(rollouts: Rollouts, simulated: FloatArray, joints: Sequence[CommandedJoint]) -> FloatArray:
    """Return simulated values, on wrapping joints by the turn nearest to the readings."""
    wraps = np.array([joint.wraps for joint in joints])[rollouts.joints]
    turns = np.round((simulated - rollouts.readings) / (2.0 * np.pi))
    return np.asarray(np.where(wraps, simulated - 2.0 * np.pi * turns, simulated))


def unexplained_joints(rollouts: Rollouts, simulated: FloatArray) -> list[int]:
    """Return joints with large residuals for their motion and noise (second differences)."""
    rest, owners, found = simulated - rollouts.readings, rollouts.owners, []
    for joint in dict.fromkeys(rollouts.joints.tolist()):
        parts = [np.flatnonzero((owners == each) & (rollouts.joints == joint)) for each in np.unique(owners)]
        noise = _mean_square([np.diff(rest[own], 2) for own in parts]) / 6.0  # of independent values
        motion = _mean_square([rollouts.readings[own] - rollouts.readings[own].mean() for own in parts if len(own)])
        size = _mean_square([rest[own] for own in parts])
        if size > _NOISES**2 * noise and size - noise > _UNEXPLAINED**2 * motion:
            found.append(joint)
    return found


def _mean_square(parts: Sequence[FloatArray]) -> float:
    values = np.concatenate([np.empty(0), *parts])
    return float(np.mean(values * values)) if len(values) else 0.0


def _rms(rollouts: Rollouts, simulated: FloatArray, joint: int) -> float:
    rest = (simulated - rollouts.readings)[rollouts.joints == joint]
    return float(np.sqrt(np.mean(rest * rest)))


def _traces(
    rollouts: Rollouts, segments: Sequence[MotionSegment], joints: Sequence[CommandedJoint], *simulated: FloatArray
) -> list[HeldOutTrace]:
    traces = []
    for index, joint in enumerate(joints):
        for segment in range(min(_MOST_TRACES, len(segments))):
            own = (rollouts.owners == segment) & (rollouts.joints == index)
            before, after = (values[own] for values in simulated)
            read = {"times_s": rollouts.times_s[own], "measured": rollouts.readings[own]}
            title = f"{joint.name}, {segments[segment].title}"
            traces.append(HeldOutTrace(title=title, joint=joint, before=before, after=after, **read))
    return traces


def write_page(found: Identification, path: str | Path, *, replace: bool = True) -> None:
    """Write the HTML page of a fit.

    Raises:
        RecordError: when it cannot be written.
        MissingDependencyError: when jinja2 is not installed.
    """
    page = render_page(
        "identify.html",
        title=f"{found.model.contract}: identified parameters",
        version=__version__,
        found=found,
        model=found.model,
        name=parameter_name,
        changes_chart=_draw_changes(found),
        overlays=[_draw_motion(trace) for trace in found.traces],
    )
    write_text(Path(path), page, replace=replace)


def _draw_changes(found: Identification) -> str:
    """Return the identified values as multiples of those of the model, with their intervals."""
    rows = []
    for each in found.model.parameters:
        if each.model > 0.0:
            value, low, high = (end / each.model for end in (each.value, each.low, each.high))
            text = f"{each.model:.4g} → {each.value:.4g} ({each.low:.4g} to {each.high:.4g})"
            rows.append(Interval(parameter_name(each.kind, each.of), value, low, high, text, "s0"))
    if not rows:
        return ""
    most = 1.05 * max(2.0, *(row.high for row in rows))
    return interval_chart("Identified values, in multiples of the model's", rows, span=(0.0, most), reference=1.0)


def _draw_motion(trace: HeldOutTrace) -> str:
    curves = (("measured", trace.measured, "measured"), ("before", trace.before, "a"), ("after", trace.after, "b"))
    lines = [Line(name, trace.times_s, values, style) for name, values, style in curves]
    return line_chart(trace.title, lines, x_title="time, s", unit=trace.joint.unit)
