"""Strategies of the safety properties, and the exact oracles that check them.

Limits, safe states, time steps and targets are drawn for the limiter; contracts and actions of any type for the gate.
The oracles follow the definitions in rational numbers, independently of the code under
test: without rounding or square roots.

The examples are the same in every run, unless ``--hypothesis-seed`` is given. ``EMBODIED_ENV_EXAMPLES=20000`` draws that
many new ones per property. ``EMBODIED_ENV_SHRINK=0`` reports failures unshrunk, as `tools/mutants.py` needs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import hypothesis.core
import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embodied_env.contract import ActuatorSpec, Contract, FieldSpec, JointLimits, Margins, Safety, SensorSpec, TaskSpec
from embodied_env.contract.contract_schema import EpisodeSpec
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.core.types import CommandState, SafetyContext, SensorStatus
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.safety.command_filters import CommandFilter, FilterDecision, ProposedCommand
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import JointBounds

_FRESH = int(os.environ.get("EMBODIED_ENV_EXAMPLES", "0"))
SEEDED = getattr(hypothesis.core, "global_force_seed", None) is not None
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
if os.environ.get("EMBODIED_ENV_SHRINK") == "0":
    _PHASES = [Phase.explicit, Phase.generate]


def examples(count: int) -> settings:
    """Return the settings of a property with half of `count` fixed examples, and all when a seed is given (`.ci/long`).

    The environment variable requests another number of new ones.
    """
    number = _FRESH or (count if SEEDED else math.ceil(count / 2))
    return settings(
        max_examples=number, deadline=None, derandomize=not (_FRESH or SEEDED), database=None, phases=_PHASES
    )


def costly(count: int) -> settings:
    """Return the settings of a property with slow examples, of which a sixth runs without a seed."""
    return examples(count if SEEDED else math.ceil(count / 3))


# ------------------------------------------------------------------------------------------------ limits and states


def magnitudes(low: float, high: float) -> st.SearchStrategy[float]:
    """Positive numbers, uniform over the decades, and round ones (they make equalities exact)."""
    spread = st.floats(math.log10(low), math.log10(high)).map(lambda exponent: min(max(10.0**exponent, low), high))
    round_ones = [value for value in (0.25, 0.5, 1.0, 2.0, 8.0, 10.0) if low <= value <= high]
    return st.one_of(st.sampled_from(round_ones), spread) if round_ones else spread


# Strategies are made once: creating one per example costs more than drawing from it.
_PART = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))
_SIGNED_PART = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1.0, 1.0))
_WIDTHS = magnitudes(1e-3, 1e2)
_SPEEDS = magnitudes(1e-3, 1e3)
_STRENGTHS = magnitudes(1e-2, 1e4)
_LOWS = st.one_of(st.sampled_from(["zero is low", "zero is high"]), st.floats(-1e2, 1e2))


def _finite_bounds(
    low: float | str,
    width: float,
    velocity: float,
    shares: tuple[float, float],
    acceleration: float,
    deceleration: float | None,
) -> JointBounds:
    start = {"zero is low": 0.0, "zero is high": -width}[low] if isinstance(low, str) else low
    return _continuous_bounds(velocity, shares, acceleration, deceleration, low=start, high=start + width)


def _continuous_bounds(
    velocity: float,
    shares: tuple[float, float],
    acceleration: float,
    deceleration: float | None,
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> JointBounds:
    return JointBounds(
        low=low,
        high=high,
        velocity_low=-shares[0] * velocity,
        velocity_high=shares[1] * velocity,
        acceleration=acceleration,
        deceleration=acceleration if deceleration is None else deceleration,
    )


_SHARES = st.sampled_from([(1.0, 1.0), (1.0, 1.0), (0.2, 1.0), (1.0, 0.01), (0.0, 1.0), (1.0, 0.0)])
"""Of the larger velocity limit, backwards and forwards: symmetric, slower in one direction, and one-way."""
_DECELERATIONS = st.one_of(st.none(), _STRENGTHS)
_FINITE = st.builds(_finite_bounds, _LOWS, _WIDTHS, _SPEEDS, _SHARES, _STRENGTHS, _DECELERATIONS)
_CONTINUOUS = st.builds(_continuous_bounds, _SPEEDS, _SHARES, _STRENGTHS, _DECELERATIONS)
_ANY = st.one_of(_FINITE, _FINITE, _CONTINUOUS)


def bounds(*, continuous: bool | None = None) -> st.SearchStrategy[JointBounds]:
    """Draw the limits of a joint, of any range, often ending at zero, and perhaps continuous."""
    return {None: _ANY, True: _CONTINUOUS, False: _FINITE}[continuous]


steps_of_time = st.one_of(st.sampled_from([1e-4, 1e-3, 0.008, 0.05, 1.0]), magnitudes(1e-4, 1.0))
"""Seconds, 0.1 ms .. 1 s."""

any_time = st.one_of(steps_of_time, magnitudes(1e-9, 1e-4))
"""Seconds, also the nanoseconds that a measured dt may have when two publishers follow each other at once."""


def largest_position(b: JointBounds, *positions: float) -> float:
    """Return the largest magnitude of a position in this range, the scale of its rounding."""
    return max(abs(p) for p in (b.low, b.high, *positions) if math.isfinite(p))


def rounding_of_velocity(position: float, target: float, velocity: float, dt_s: float) -> float:
    """Bound the rounding error of (target - position) / dt.

    With the ends of a joint's range as `position` and `target`, it bounds by how much any limit is exceeded.
    """
    return 4.0 * sys.float_info.epsilon * ((abs(position) + abs(target)) / dt_s + abs(velocity))


def rounding(b: JointBounds, x: float, reached: float, v: float, dt: float) -> float:
    """Return the bound of the rounding of a velocity over the range of `b` by `rounding_of_velocity`."""
    extent = largest_position(b, x, reached)
    return rounding_of_velocity(extent, extent, abs(v) + max(b.acceleration, b.deceleration) * dt, dt)


def stopping_excess(x: float, v: float, b: JointBounds) -> Fraction:
    """Return exactly how far beyond a limit full braking ends, which is <= 0 inside."""
    stop = Fraction(x) + Fraction(v) * abs(Fraction(v)) / (2 * Fraction(b.deceleration))
    above = stop - Fraction(b.high) if v >= 0 and math.isfinite(b.high) else Fraction(-1)
    below = Fraction(b.low) - stop if v <= 0 and math.isfinite(b.low) else Fraction(-1)
    return max(above, below)


def in_safe_set(x: float, v: float, b: JointBounds) -> bool:
    """Return whether (x, v) is in K. Exact."""
    return b.low <= x <= b.high and b.velocity_low <= v <= b.velocity_high and stopping_excess(x, v, b) <= 0


def within_acceleration(v: float, w: Fraction, b: JointBounds, dt: float) -> bool:
    """Return whether the velocity may change from v to w in dt.

    A bounds speeding up, D slowing down, and the lesser of both a change across zero.
    """
    speed_up, slow_down = Fraction(b.acceleration) * Fraction(dt), Fraction(b.deceleration) * Fraction(dt)
    before = Fraction(v)
    if before * w < 0:
        return abs(w - before) <= min(speed_up, slow_down)
    grown = abs(w) - abs(before)
    return grown <= speed_up and -grown <= slow_down


def admissible(x: float, v: float, w: Fraction, b: JointBounds, dt: float) -> bool:
    """Return whether velocity w for dt keeps every limit and lets the robot stop before the range ends. Exact."""
    if not Fraction(b.velocity_low) <= w <= Fraction(b.velocity_high) or not within_acceleration(v, w, b, dt):
        return False
    stop = Fraction(x) + w * Fraction(dt) + w * abs(w) / (2 * Fraction(b.deceleration))
    if w > 0 and math.isfinite(b.high):
        return stop <= Fraction(b.high)
    return not (w < 0 and math.isfinite(b.low)) or stop >= Fraction(b.low)


_STATE_PARTS = st.tuples(_PART, _SIGNED_PART)


def safe_state(b: JointBounds, parts: tuple[float, float]) -> tuple[float, float]:
    """Return the state (x, v) of K at these fractions of the range and of the safe speed there."""
    if math.isfinite(b.low):
        x = min(max(b.low + parts[0] * (b.high - b.low), b.low), b.high)
    else:
        x = (parts[0] - 0.5) * 1e3
    v = parts[1] * b.velocity_high if parts[1] > 0.0 else -parts[1] * b.velocity_low
    room = b.high - x if v > 0 else x - b.low
    if math.isfinite(room):
        v = math.copysign(min(abs(v), math.sqrt(2.0 * b.deceleration * max(0.0, room))), v)
    for _ in range(8):
        if in_safe_set(x, v, b):
            return x, v
        v = math.nextafter(v, 0.0)
    return x, 0.0  # a range so small that the square of a speed in it underflows


def safe_states(b: JointBounds) -> st.SearchStrategy[tuple[float, float]]:
    """Draw a state (x, v) of K, which is often at a bound and often on the edge of K."""
    return _STATE_PARTS.map(lambda parts: safe_state(b, parts))


@dataclasses.dataclass(frozen=True)
class Aim:
    """The target of an adversary, relative to the current state."""

    kind: str
    number: float = 0.0

    def target(self, x: float, edges: tuple[float, float], b: JointBounds, dt: float) -> float:
        """Return the desired position. `edges` are the velocities at the ends of the admissible interval."""
        lower, upper = edges
        slack = rounding(b, x, x, max(abs(lower), abs(upper)), dt)
        return {
            "far": x + self.number * b.fastest * dt,
            "bound": (b.low if self.number < 0 else b.high) if math.isfinite(b.low) else x,
            "edge": x + ((lower if self.number < 0 else upper) + self.number * slack) * dt,
            "inside": x + (lower + abs(self.number) / 3.0 * (upper - lower)) * dt,
            "hold": x,
            "anything": self.number,
        }[self.kind]


aims = st.one_of(
    st.builds(Aim, st.sampled_from(["far", "bound", "edge", "inside", "hold"]), st.floats(-3.0, 3.0)),
    st.builds(Aim, st.just("far"), st.sampled_from([-1e3, -1.0, 1.0, 1e3])),
    st.builds(Aim, st.just("anything"), st.floats(allow_nan=False, allow_infinity=False)),
)


def _situation(b: JointBounds, parts: tuple[float, float], dt: float, aim: Aim) -> SimpleNamespace:
    x, v = safe_state(b, parts)
    return SimpleNamespace(b=b, x=x, v=v, dt=dt, aim=aim)


_SITUATIONS = st.builds(_situation, _ANY, _STATE_PARTS, steps_of_time, aims)
_QUICK_SITUATIONS = st.builds(_situation, _ANY, _STATE_PARTS, any_time, aims)


def situations(*, quick: bool = False) -> st.SearchStrategy[SimpleNamespace]:
    """Draw bounds `b`, a safe state `x`, `v`, a time `dt` and an `aim` for one step of the limiter."""
    return _QUICK_SITUATIONS if quick else _SITUATIONS


def _journey(b: JointBounds, parts: tuple[float, float], legs: list[tuple[float, Aim]]) -> SimpleNamespace:
    return SimpleNamespace(b=b, state=safe_state(b, parts), legs=legs)


def journeys(*, quick: bool = False) -> st.SearchStrategy[SimpleNamespace]:
    """Draw many steps with bounds `b`, a safe start `state`, and time and aim of each of the `legs`."""
    legs = st.lists(st.tuples(any_time if quick else steps_of_time, aims), min_size=1, max_size=20)
    return st.builds(_journey, _ANY, _STATE_PARTS, legs)


# --------------------------------------------------------------------------------------------- contracts and gates


def contract_of(
    *limits: JointLimits,
    command: Any = "position_delta",
    scale: Any = "normalized",
    split: int = 0,
    control_period_s: float = 0.05,
    margins: Margins | None = None,
    **safety: Any,
) -> Contract:
    """Return a contract that drives joints j0, j1, ... of `limits`, the first `split` by a separate actuator."""
    joints = {f"j{i}": limit for i, limit in enumerate(limits)}
    names = tuple(joints)
    parts = {"arm": names} if not split else {"base": names[:split], "arm": names[split:]}
    sensor = SensorSpec(
        topic="joint_states",
        type=JOINT_SENSOR,
        fields={"position": FieldSpec(unit="rad", low=-1e9, high=1e9, joints=names)},
        max_age_s=0.15,
    )
    return Contract(
        name="drawn",
        version=1,
        control_period_s=control_period_s,
        episode=EpisodeSpec(horizon_steps=1000),
        sensors={"joints": sensor},
        actuators={
            name: ActuatorSpec(
                topic=f"{name}/commands",
                type="std_msgs/msg/Float64MultiArray",
                command=command,
                scale=scale,
                joints={joint: joints[joint] for joint in part},
            )
            for name, part in parts.items()
        },
        safety=Safety(margins=margins or Margins(position=0.0, velocity=1.0, acceleration=1.0), **safety),
        task=TaskSpec(type="reach", parameters={}),
    )


def as_joint_limits(b: JointBounds) -> JointLimits:
    """Return bounds as the limits of a contract without margins."""
    position = (b.low, b.high) if math.isfinite(b.low) else None
    velocity = b.velocity_low, b.velocity_high
    return JointLimits(position=position, velocity=velocity, acceleration=b.acceleration, deceleration=b.deceleration)


_SCALES = st.sampled_from(["normalized", "physical"])
_PERIODS = st.sampled_from([0.001, 0.008, 0.05, 0.2])
_TIMES = st.one_of(st.just(1.0), st.floats(0.01, 1.0))
_SPLITS = st.integers(0, 3)


def _gate(
    joints: list[tuple[JointBounds, tuple[float, float]]],
    command: str,
    scale: str,
    split: int,
    period: float,
    time: float,
    mode: str,
) -> SimpleNamespace:
    limits = [b for b, _ in joints]
    contract = contract_of(
        *map(as_joint_limits, limits),
        command=command,
        scale=scale,
        split=split if split < len(limits) else 0,
        control_period_s=period,
        mode=mode,
    )
    return SimpleNamespace(
        contract=contract,
        gate=SafetyGate(contract),
        bounds=limits,
        reference=reference_at(*[safe_state(b, parts) for b, parts in joints]),
        dt=time * period,
    )


def gates(*, joints: int = 4, mode: str = "enforce") -> st.SearchStrategy[SimpleNamespace]:
    """A gate of 1..`joints` joints, delta or absolute, normalised or physical, one actuator or two.

    Has `contract`, `gate`, `bounds` per joint, a `reference` in the safe set, and `dt` (up to the control period).
    """

    def of(command: str, limits: st.SearchStrategy[JointBounds]) -> st.SearchStrategy[SimpleNamespace]:
        states = st.lists(st.tuples(limits, _STATE_PARTS), min_size=1, max_size=joints)
        return st.builds(_gate, states, st.just(command), _SCALES, _SPLITS, _PERIODS, _TIMES, st.just(mode))

    return st.one_of(of("position_delta", _ANY), of("position", _FINITE))


def reference_at(*states: tuple[float, float], seq: int = 0, epoch: int = 0) -> CommandState:
    """Return the reference of these (position, velocity), one per joint."""
    positions, velocities = zip(*states, strict=True)
    return CommandState(positions=np.array(positions), velocities=np.array(velocities), seq=seq, epoch=epoch)


# -------------------------------------------------------------------------------------------------- safety context


def calm(reference: CommandState, **changes: Any) -> SafetyContext:
    """Return a context without faults for a contract of `contract_of`, with `changes`."""
    fine: dict[str, Any] = {
        "sensors": {"joints": SensorStatus(quality=Quality.OK, age_s=0.0)},
        "measured": reference.positions,
        "forces": {"joints": 0.0},
    }
    return SafetyContext(**{**fine, **changes})


INPUT_STATES = (
    "ok",
    "ok",
    "ok",
    "ok",
    "active",
    "expired",
    "unknown",
    "protective_stop",
    "inactive",
    "contention",
    "?",
)

_AGES = st.one_of(st.sampled_from([0.0, 0.15, 0.2, -0.005, -1.0, math.nan, math.inf, -math.inf]), st.floats(-0.1, 0.3))
_SENSORS: st.SearchStrategy[dict] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"joints": st.builds(lambda q, a: SensorStatus(quality=q, age_s=a), st.sampled_from(Quality), _AGES)}
    ),
)
_GOOD_SENSORS = st.just({"joints": SensorStatus(quality=Quality.OK, age_s=0.0)})
_TIMES_BESIDE = st.one_of(st.sampled_from([0.0, 0.0, 0.1, 1.0, math.nan, math.inf]), st.floats(0.0, 0.3))
_OFFSETS = st.sampled_from([0.0, 0.0, 0.0, 1e-3, -0.2, 5.0, math.nan, math.inf])
_FORCES = st.sampled_from([{"joints": 0.0}, {"joints": 0.0}, {"joints": 5.0}, {"joints": math.nan}, {}])
_INPUTS = st.dictionaries(st.sampled_from(["door", "button"]), st.sampled_from(INPUT_STATES))


@functools.cache
def contexts(size: int, *, latching: bool = True) -> st.SearchStrategy[Any]:
    """Draw contexts with any faults, as functions of the reference. Without `latching` none latches."""

    def of(sensors: Any, offsets: list[float], action: float, latency: float, inputs: Any, forces: Any) -> Any:
        return lambda reference: SafetyContext(
            sensors=sensors,
            measured=reference.positions + np.array(offsets),
            action_age_s=action,
            latency_s=latency,
            estops=parse_states(inputs) if latching else {},
            forces=forces if latching else {"joints": 0.0},
        )

    offsets = st.lists(_OFFSETS, min_size=size, max_size=size)
    wrong = st.builds(of, _SENSORS, offsets, _TIMES_BESIDE, _TIMES_BESIDE, _INPUTS, _FORCES)
    mostly = st.builds(of, _GOOD_SENSORS, st.just([0.0] * size), st.just(0.0), _TIMES_BESIDE, st.just({}), _FORCES)
    return st.one_of(st.just(calm), mostly, wrong)


class FunctionFilter:
    """A command filter without state that decides by a function of the proposal."""

    def __init__(self, decide: Callable[[ProposedCommand], FilterDecision | None]) -> None:
        self.filter = decide

    def reset(self) -> None:
        """Do nothing."""


class ScriptedFilter:
    """A command filter that returns these decisions in turn."""

    def __init__(self, decisions: list[FilterDecision | None]) -> None:
        self._decisions, self._calls = decisions, 0

    def reset(self) -> None:
        self._calls = 0

    def filter(self, proposal: ProposedCommand) -> FilterDecision | None:
        self._calls += 1
        return self._decisions[(self._calls - 1) % len(self._decisions)]


_SHARES = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1e-9, math.nan, -1.0, 2.0]), st.floats(0.0, 1.0))
_RULINGS = st.one_of(
    st.none(),
    st.builds(lambda share: FilterDecision(severity=Severity.LIMIT, share=share), st.floats(0.01, 0.99)),
    st.builds(
        lambda severity, share: FilterDecision(severity=severity, share=share), st.sampled_from(Severity), _SHARES
    ),
)
_WEAK_RULINGS = st.one_of(st.none(), st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)).map(
    lambda share: None if share is None else FilterDecision(severity=Severity.LIMIT, share=share)
)


@functools.cache
def command_filters(*, refusing: bool = True) -> st.SearchStrategy[Any]:
    """No, one or two command filters, as functions that create them. Without `refusing` they leave some share."""
    decisions = st.lists(_RULINGS if refusing else _WEAK_RULINGS, min_size=1, max_size=5)
    named = st.dictionaries(st.sampled_from(["workspace", "fence", "slow"]), decisions, max_size=2)
    # sorted: the workspace comes last, as in `make_command_filters`
    return named.map(lambda each: lambda: {name: ScriptedFilter(list(given)) for name, given in sorted(each.items())})


def with_safety(contract: Contract, **changes: Any) -> Contract:
    return dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, **changes))


def rebuilt(g: SimpleNamespace, filters: dict[str, CommandFilter] | None = None, **safety: Any) -> SafetyGate:
    """Return the gate of `g` with other command filters and settings."""
    return SafetyGate(with_safety(g.contract, **safety), filters=filters)


# ----------------------------------------------------------------------------------------------------------- actions

ODD_NUMBERS = (0.0, -0.0, 1.0, -1.0, math.nextafter(1.0, 2.0), 5e-324, -2.2e-308, 1e-30, 0.3, 7.0, 1e308, -1e308)
NOT_FINITE = (math.nan, math.inf, -math.inf)


_NUMBERS = st.one_of(
    st.sampled_from(ODD_NUMBERS), st.floats(-1.5, 1.5), st.floats(allow_nan=False, allow_infinity=False)
)


@functools.cache
def finite_vectors(size: int) -> st.SearchStrategy[np.ndarray]:
    """Draw well-formed actions that are subnormal, huge, at and beyond the edges of the action space."""
    return st.lists(_NUMBERS, min_size=size, max_size=size).map(np.array)


class _Refuses:
    """An object that cannot be converted to an array."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("no")


class _RefusesSilently(Exception):  # noqa: N818
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("not even this")


class _RefusesRudely:
    """An object whose conversion raises an error that cannot be printed."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise _RefusesSilently


class _TornTensor:
    """Looks like a tensor, but has no cpu()."""

    def detach(self) -> _TornTensor:
        return self


class _Vanishes(dict):
    """A mapping whose values are missing when they are read."""

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)


class _Endless(dict):
    """A mapping that cannot be listed."""

    def __iter__(self) -> Any:
        raise RuntimeError("no keys today")


@functools.cache
def malformed_values(size: int) -> st.SearchStrategy[Any]:
    """Draw values that are not `size` finite real numbers, by their value, shape or type."""
    at = st.integers(0, size - 1)
    not_finite = st.builds(
        lambda i, bad, dtype: _with(np.zeros(size, dtype), i, bad),
        at,
        st.sampled_from(NOT_FINITE),
        st.sampled_from(["f2", "f4", "f8"]),
    )
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=size + 1).filter(lambda s: s != (size,))
    return st.one_of(
        not_finite,
        shapes.map(np.zeros),
        st.just([[0.0] * size]),
        st.just([[0.0], [0.0, 1.0]]),
        st.just(["0.5"] * size),
        st.just([None] * size),
        st.just([True] * size),
        st.just(np.zeros(size, complex)),
        st.just(np.zeros(size, object)),
        st.just(np.full(size, np.longdouble("1e4000"))),
        st.just(np.zeros(size, "datetime64[s]")),
        st.sampled_from([None, "go", b"go", object, {}, {"arm": [math.nan]}, {1: 2}, {1, 2}, 1e308 + 0j]),
        st.builds(lambda make: make(), st.sampled_from([object, _Refuses, _RefusesRudely, _TornTensor])),
    )


@functools.cache
def well_formed_values(size: int) -> st.SearchStrategy[Any]:
    """Values that are `size` finite real numbers, in every accepted container."""
    small = st.lists(st.integers(-3, 3), min_size=size, max_size=size)
    return st.one_of(
        finite_vectors(size),
        finite_vectors(size).map(np.ndarray.tolist),
        finite_vectors(size).map(lambda v: tuple(v.tolist())),
        finite_vectors(size).map(_strided),
        finite_vectors(size).map(lambda v: v.astype(">f8")),
        small,
        small.map(lambda v: np.array(v, np.int8)),
        small.map(lambda v: np.abs(np.array(v)).astype(np.uint64) + np.uint64(2**63)),
        small.map(lambda v: np.array(v, np.float16)),
        small.map(lambda v: np.array(v, np.float32)),
    )


def _sizes(contract: Contract) -> tuple[tuple[str, int], ...]:
    return tuple((name, len(actuator.joints)) for name, actuator in contract.actuators.items())


@functools.cache
def _actions(sizes: tuple[tuple[str, int], ...], values: Any) -> st.SearchStrategy[Any]:
    if len(sizes) == 1:
        return values(sizes[0][1])
    return st.fixed_dictionaries({name: values(size) for name, size in sizes})


def actions_of(contract: Contract, values: Any = well_formed_values) -> st.SearchStrategy[Any]:
    """Draw actions of the contract's structure, whose parts `values` draws from their sizes."""
    return _actions(_sizes(contract), values)


@functools.cache
def _any_values(size: int) -> st.SearchStrategy[Any]:
    return st.one_of(well_formed_values(size), malformed_values(size))


@functools.cache
def _any_actions(sizes: tuple[tuple[str, int], ...]) -> st.SearchStrategy[Any]:
    torn = st.builds(lambda make: make({name: [0.0] for name, _ in sizes}), st.sampled_from([_Vanishes, _Endless]))
    whole = malformed_values(sum(size for _, size in sizes))
    return st.one_of(_actions(sizes, well_formed_values), _actions(sizes, _any_values), whole, torn)


def any_actions(contract: Contract) -> st.SearchStrategy[Any]:
    """Anything that an agent may send."""
    return _any_actions(_sizes(contract))


def _with(array: np.ndarray, index: int, value: float) -> np.ndarray:
    array[index] = value
    return array


def _strided(vector: np.ndarray) -> np.ndarray:
    """The same numbers in read-only memory that is not contiguous."""
    view = np.repeat(vector, 2)[::2]
    view.setflags(write=False)
    return view


@functools.cache
def joint_limits() -> JointLimits:
    return JointLimits(position=(-2.0, 2.0), velocity=1.0, acceleration=4.0, deceleration=8.0)


def plain_contract(*, joints: int = 2, **options: Any) -> Contract:
    """Return a contract of plain joints with the `options` of `contract_of`."""
    return contract_of(*[joint_limits()] * joints, **options)
