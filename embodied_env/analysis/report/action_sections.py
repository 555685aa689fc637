"""Sections of a report: what the gates did, requested beside applied, and key frames."""

from __future__ import annotations

from embodied_env.analysis.report.action_collectors import Firing, GateCount, JointDifference
from embodied_env.analysis.report.collectors import RunCollector
from embodied_env.analysis.report.figures import Line, heat_figure, lines_figure
from embodied_env.analysis.report.formatting import format_number, plural, share_of
from embodied_env.analysis.report.html import BLUE, PALE_ORANGE, Block, grid, paragraph, picture, section, table
from embodied_env.analysis.report.key_frames import Fetch, Frame, pillow_is_here, png_base64
from embodied_env.analysis.report.time_series import Timeline
from embodied_env.analysis.report.timing_sections import step_axis
from embodied_env.core.codes import Severity
from embodied_env.errors import RecordError

_MOST_ROWS = 40
_MOST_IN_MAP = 24
_MOST_JOINTS = 16
_BANDS = {BLUE: "rgba(0,114,178,0.16)", PALE_ORANGE: "rgba(230,159,0,0.18)"}


def gates_section(account: RunCollector) -> Block:
    """Return which gates fired, at which joint, and when."""
    gates = account.gates
    if not gates.steps and not gates.fired:
        return section("Gates", paragraph("No step tells what the gates did.", kind="warning"), anchor="gates")
    said = ", ".join(f"{name} {count:,}" for name, count in gates.dispositions.most_common())
    parts: list[Block | None] = [paragraph(f"The gravest answer of each step: {said or 'not told'}.")]
    ordered = sorted(gates.fired.items(), key=lambda item: (-item[1].steps, item[0]))
    if ordered:
        rows = [_firing(firing, fired, account.steps) for firing, fired in ordered[:_MOST_ROWS]]
        header = ("gate", "code", "joint", "gravest", "steps", "share", "first", "last step")
        parts += [_map(account.timeline, [firing for firing, _ in ordered[:_MOST_IN_MAP]])]
        parts += [table(header, rows, numbers=(4, 5, 6, 7)), _left(len(ordered) - len(rows), "firing")]
    else:
        parts.append(paragraph("No gate fired."))
    if gates.told:
        rows = [(gate, code, f"{count:,}") for (gate, code), count in gates.told.most_common(_MOST_ROWS)]
        parts.append(table(("told only, nothing changed", "code", "steps"), rows, numbers=(2,)))
    return section("Gates fired, by joint", *parts, anchor="gates")


def actions_section(account: RunCollector) -> Block:
    """Return requested beside applied, by joint."""
    actions, title = account.actions, "Requested and applied, by joint"
    if not actions.joints:
        said = paragraph("No step tells what was requested and what was applied.", kind="warning")
        return section(title, said, anchor="actions")
    header = ("joint", "steps changed", "share", "mean |difference|", "most", "at step", "no number requested")
    shown = list(actions.joints.items())[:_MOST_JOINTS]
    bands = "" if account.timeline.width == 1 else "Lines: the median of the steps of a point; shaded: least to most."
    parts: list[Block | None] = [
        paragraph(
            f"In the units of the action space. Applied is what the gates let through. {bands}".strip(), kind="note"
        ),
        table(header, [_joint(name, joint) for name, joint in actions.joints.items()], numbers=(1, 2, 3, 4, 5, 6)),
        grid(_joint_figure(account.timeline, name) for name, _ in shown),
        _left(len(actions.joints) - len(shown), "joint"),
    ]
    if actions.no_account:
        parts.append(
            paragraph(f"{plural(actions.no_account, 'step')} without an account of the action.", kind="warning")
        )
    return section(title, *parts, anchor="actions")


def frames_section(account: RunCollector, fetch: Fetch) -> Block:
    """Return a few images of each camera."""
    frames, title = account.frames.frames(), "Key frames"
    if not frames:
        return section(title, paragraph("The observations of this run hold no images."), anchor="frames")
    cameras = ", ".join(dict.fromkeys(frame.camera for frame in frames))
    if not pillow_is_here():
        said = f'Images of {cameras} are in the log, but Pillow is not installed: pip install "embodied_env[images]"'
        return section(title, paragraph(said, kind="warning"), anchor="frames")
    shown = grid((_frame(frame, fetch) for frame in frames), kind="pictures")
    return section(title, shown, _left(len(account.frames.cameras_left_out), "camera"), anchor="frames")


def _firing(firing: Firing, fired: GateCount, steps: int) -> tuple[str, ...]:
    gate, code, joint = firing
    counts = (f"{fired.steps:,}", share_of(fired.steps, steps), f"{fired.first_step:,}", f"{fired.last_step:,}")
    return (gate, code, joint or "all", Severity(fired.gravest).name, *counts)


def _map(timeline: Timeline, firings: list[Firing]) -> Block:
    names = [f"{code or gate} · {joint}" if joint else code or gate for gate, code, joint in firings]
    shares = [timeline.shares(("fired", *firing)) for firing in firings]
    title = "Share of steps in which it fired"
    return heat_figure(title, timeline.first_steps, names, shares, x_title=step_axis(timeline), scale_title="")


def _joint(name: str, joint: JointDifference) -> tuple[str, ...]:
    spread = joint.differences.percentiles()
    compared = spread.count > 0
    mean = format_number(joint.total_difference / spread.count) if compared else "none"
    at = f"{joint.worst_step:,}" if joint.worst_step else ""
    most = format_number(spread.most) if compared else "none"
    return (name, f"{joint.changed:,}", share_of(joint.changed, joint.steps), mean, most, at, f"{joint.no_number:,}")


def _joint_figure(timeline: Timeline, name: str) -> Block:
    lines = []
    for kind, colour in (("requested", PALE_ORANGE), ("applied", BLUE)):
        curve = timeline.curve((kind, name))
        if timeline.width > 1:
            lines.append(Line(name="", y=curve.most, low=curve.least, colour=_BANDS[colour]))
        width = 4.0 if kind == "requested" else 1.6  # so that it is seen behind what was applied, where both agree
        lines.append(Line(name=kind, y=curve.p50, colour=colour, width=width))
    return lines_figure(name, timeline.first_steps, lines, x_title=step_axis(timeline), y_title="action")


def _frame(frame: Frame, fetch: Fetch) -> Block:
    caption = f"{frame.camera}, {frame.when}"
    try:
        png, said = png_base64(fetch(frame.reference))
    except (RecordError, ValueError, TypeError, OSError) as error:
        return paragraph(f"{caption}: the image cannot be shown: {error}", kind="warning")
    return picture(png, f"{caption}; {said}" if said else caption)


def _left(count: int, what: str) -> Block | None:
    return paragraph(f"and {plural(count, f'more {what}')}.", kind="note") if count > 0 else None
