"""Conformance suites to derive from, for backends and environments, and test doubles."""

from __future__ import annotations

import contextlib
import functools
import math
import unittest
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np

from embodied_env.backends.backend import Backend
from embodied_env.contract import Contract, FloatArray, load_contract
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.policy import NoAction
from embodied_env.core.types import ApprovedCommand, CommandState, ResetRequest, Snapshot, Transition
from embodied_env.errors import BackendError, ClosedError, ResetNeededError
from embodied_env.safety.gate import SafetyGate
from embodied_env.timing.clock import NS_PER_S, Clock, SteadyClock


@dataclass
class SpyObserver:
    """Stores every transition."""

    seen: list[Transition] = field(default_factory=list)

    def observe(self, transition: Transition) -> None:
        """Store the transition."""
        self.seen.append(transition)


def approve(contract: Contract, action: Any, *, positions: Any = None, seq: int = 0, epoch: int = 0) -> ApprovedCommand:  # noqa: ANN401
    """Pass `action` through the real gate, from rest at `positions` or at zeros by default."""
    gate = SafetyGate(contract)
    start = np.zeros(gate.layout.size) if positions is None else np.asarray(positions, dtype=np.float64)
    reference = CommandState(positions=start, velocities=np.zeros_like(start), seq=seq, epoch=epoch)
    return gate.judge(action, reference, contract.control_period_s)


_raises = unittest.TestCase().assertRaises


class BackendContract(ABC):
    """The rules of `embodied_env.backends.backend`.

    Override `make_backend`, and optionally `contract`. For a free-running backend, return a `ManualClock` from
    `make_clock`.
    """

    contract: ClassVar[Contract] = load_contract("arm_reach")

    @abstractmethod
    def make_backend(self, clock: Clock) -> Backend:
        """Return a new, unopened backend for `self.contract`."""

    def make_clock(self) -> Clock:
        """Return the clock of the backends."""
        return SteadyClock()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Backend]:
        """Open a new backend and close it at the end."""
        self.clock: Clock = self.make_clock()
        backend = self.make_backend(self.clock)
        try:
            backend.open()
            yield backend
        finally:
            backend.close()

    def deadline_ns(self, timeout_s: float) -> int:
        """Return the stamp in `timeout_s`."""
        return self.clock.now_ns() + round(timeout_s * NS_PER_S)

    def reset(self, backend: Backend, *, seed: int = 7, epoch: int = 0, options: Any = None) -> Snapshot:  # noqa: ANN401
        """Reset `backend`."""
        request = ResetRequest(epoch=epoch, seed=seed, options=options or {})
        return backend.reset(request, self.deadline_ns(backend.reset_timeout_s))

    def hold(self, snapshot: Snapshot) -> ApprovedCommand:
        """Return an approved command that holds the measured positions."""
        positions = self._positions(snapshot)
        at_rest = CommandState(positions=positions, velocities=np.zeros_like(positions), seq=0, epoch=0)
        action = self._gate.layout.as_action(self._gate.hold_action(at_rest))
        return approve(self.contract, action, positions=positions)

    def step(self, backend: Backend, snapshot: Snapshot, command: ApprovedCommand | None = None) -> Snapshot:
        """Send a command or hold by default, advance one control period, and read."""
        target_ns = snapshot.now_ns + self.contract.control_period_ns
        deadline_ns = self.deadline_ns(backend.step_timeout_s)
        backend.send(command if command is not None else self.hold(snapshot))
        backend.advance(target_ns, deadline_ns)
        return backend.read(target_ns, deadline_ns)

    def test_has_name_and_capabilities(self) -> None:
        backend = self.make_backend(SteadyClock())
        assert backend.name
        assert backend.capabilities.reset_levels
        backend.close()

    def test_close_is_idempotent_and_safe_before_open(self) -> None:
        backend = self.make_backend(SteadyClock())
        backend.close()
        backend.close()

    def test_halt_never_raises_and_is_idempotent(self) -> None:
        backend = self.make_backend(SteadyClock())
        backend.halt("before open")
        backend.close()
        with self.opened() as running:
            self.reset(running)
            running.halt("once")
            running.halt("twice")

    def test_reset_reads_every_sensor(self) -> None:
        with self.opened() as backend:
            samples = self.reset(backend).samples
            assert set(samples) == set(self.contract.sensors)
            for name, sensor in self.contract.sensors.items():
                assert set(samples[name].values) == set(sensor.fields)

    def test_reset_readings_are_newer_than_previous_ones(self) -> None:
        with self.opened() as backend:
            before = self.step(backend, self.reset(backend))
            after = self.reset(backend, epoch=1)
            newest = max(sample.stamp_ns for sample in before.samples.values())
            assert all(sample.stamp_ns > newest for sample in after.samples.values())

    def test_reset_report_is_complete(self) -> None:
        with self.opened() as backend:
            report = self.reset(backend, seed=11).reset
            assert report is not None
            assert report.level in backend.capabilities.reset_levels
            assert report.seed_applied == (11 if backend.capabilities.seedable else None)
            assert set(report.sampled) == set(self.contract.reset_options)

    def test_same_seed_gives_same_readings(self) -> None:
        with self.opened() as backend:
            if not backend.capabilities.seedable:
                return
            first = self.reset(backend, seed=3)
            self.step(backend, first)
            again = self.reset(backend, seed=3, epoch=1)
            assert_same_values(first, again)

    def test_reset_options_are_applied(self) -> None:
        with self.opened() as backend:
            drawn = self.reset(backend, seed=11).reset
            assert drawn is not None
            options = dict(drawn.sampled)
            report = self.reset(backend, options=options, epoch=1).reset
            assert report is not None
            for name, value in options.items():
                np.testing.assert_array_equal(report.sampled[name], value)

    def test_step_advances_exactly_one_control_period(self) -> None:
        with self.opened() as backend:
            snapshot = self.reset(backend)
            for _ in range(5):
                following = self.step(backend, snapshot)
                assert following.now_ns - snapshot.now_ns == self.contract.control_period_ns
                for name, sensor in self.contract.sensors.items():
                    if sensor.rate_hz == 0:
                        assert following.samples[name].stamp_ns == following.now_ns
                snapshot = following

    def test_send_does_not_advance_time(self) -> None:
        with self.opened() as backend:
            snapshot = self.reset(backend)
            for _ in range(3):
                backend.send(self.hold(snapshot))
            following = self.step(backend, snapshot)
            assert following.now_ns - snapshot.now_ns == self.contract.control_period_ns

    def test_send_returns_sent_command(self) -> None:
        with self.opened() as backend:
            command = self.hold(self.reset(backend))
            sent = backend.send(command)
            assert sent.seq == command.seq
            np.testing.assert_array_equal(sent.values, command.values)

    def test_send_accepts_only_approved_commands(self) -> None:
        with self.opened() as backend:
            snapshot = self.reset(backend)
            with _raises(TypeError):
                backend.send(cast("Any", self._positions(snapshot)))

    def test_readings_are_immutable(self) -> None:
        with self.opened() as backend:
            first = self.reset(backend)
            kept = {n: {f: v.copy() for f, v in s.values.items()} for n, s in first.samples.items()}
            highest = self._gate.layout.as_action(self._gate.layout.scale.high)
            push = approve(self.contract, highest, positions=self._positions(first))
            self.step(backend, first, push)
            for name, sample in first.samples.items():
                for field_name, values in sample.values.items():
                    np.testing.assert_array_equal(values, kept[name][field_name])

    def test_only_reset_works_after_halt(self) -> None:
        with self.opened() as backend:
            snapshot = self.reset(backend)
            command = self.hold(snapshot)
            backend.halt("test")
            with _raises(BackendError):
                backend.send(command)
            again = self.reset(backend, epoch=1)
            self.step(backend, again)

    def _positions(self, snapshot: Snapshot) -> FloatArray:
        return MeasuredJoints(self.contract, self._gate.layout.joints).measured(snapshot)[0]

    @functools.cached_property
    def _gate(self) -> SafetyGate:
        return SafetyGate(self.contract)


class EnvContract(ABC):
    """Rules of the environment for any lockstep backend, from `make_env` of a subclass."""

    @abstractmethod
    def make_env(self, **options: Any) -> gymnasium.Env[Any, Any]:  # noqa: ANN401 - passed on to make
        """Return a new environment with `options`, or with ``clock="virtual"`` by default."""

    @contextlib.contextmanager
    def env(self, **options: Any) -> Iterator[gymnasium.Env[Any, Any]]:  # noqa: ANN401 - passed on
        """Create an environment and close it at the end."""
        env = self.make_env(**options)
        try:
            yield env
        finally:
            env.close()

    def test_close_is_idempotent_and_safe_before_reset(self) -> None:
        env = self.make_env()
        env.close()
        env.close()

    def test_observations_are_in_observation_space(self) -> None:
        with self.env() as env:
            observation, _ = env.reset(seed=1)
            assert observation in env.observation_space
            env.action_space.seed(1)
            for _ in range(20):
                observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
                assert observation in env.observation_space
                assert not (terminated and truncated)
                if terminated or truncated:
                    break

    def test_same_seed_and_actions_give_same_episode(self) -> None:
        with self.env() as env:
            assert self._episode(env, seed=5) == self._episode(env, seed=5)

    def test_info_keys_are_the_same_at_every_step(self) -> None:
        with self.env() as env:
            reset = env.reset(seed=2)[1]["reset"]
            assert {"seed_applied", "routine", "confirmed_by", "options_ignored", "judged", "solved"} <= set(reset)
            first = keys_of(env.step(env.action_space.sample())[-1])
            assert keys_of(env.step(env.action_space.sample())[-1]) == first

    def test_step_before_reset_raises(self) -> None:
        with self.env() as env, _raises(ResetNeededError):
            env.step(env.action_space.sample())

    def test_step_after_close_raises(self) -> None:
        with self.env() as env:
            env.reset(seed=1)
        with _raises(ClosedError):
            env.step(env.action_space.sample())

    def test_obs_to_command_is_the_sum_of_its_parts(self) -> None:
        with self.env(clock="steady", host_timing=True) as env:
            env.reset(seed=1)
            env.step(env.action_space.sample())
            transition = cast("Any", env.unwrapped).last_transition
            ns = transition.stamps_ns
            stamps = [ns[name] for name in ("previous_observed", "previous_returned", "entered", "gated", "published")]
            assert stamps == sorted(stamps)
            assert transition.info["latency_ms"] == sum(b - a for a, b in pairwise(stamps)) / 1e6

    def test_malformed_action_brakes_and_is_reported(self) -> None:
        with self.env() as env:
            env.reset(seed=1)
            bad = np.full(cast("Any", env.action_space).shape, np.nan)
            observation, reward, _, _, info = env.step(bad)
            assert observation in env.observation_space
            assert math.isfinite(reward)
            assert info["action_clipped"]
            assert all(np.isfinite(value) for value in info["action"]["applied_si"].values())

    def test_no_action_holds_for_one_tick(self) -> None:
        with self.env() as env:
            env.reset(seed=1)
            _, _, terminated, truncated, info = env.step(NoAction("no answer in time"))
            assert not terminated
            assert not truncated
            assert info["safety"]["disposition"] == Severity.HOLD
            made = cast("Any", env.unwrapped).last_transition
            assert [(found.code, found.detail) for found in made.report.findings] == [
                ("form.none", "no answer in time")
            ]
            _, _, _, _, info = env.step(env.action_space.sample())
            assert info["safety"]["disposition"] < Severity.HOLD

    def _episode(self, env: gymnasium.Env[Any, Any], *, seed: int) -> list[Any]:
        observation, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        rows: list[Any] = [{key: value.tobytes() for key, value in observation.items()}]
        for _ in range(20):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            rows.append(({key: value.tobytes() for key, value in observation.items()}, reward, terminated, truncated))
            if terminated or truncated:
                break
        return rows


def keys_of(info: Any, prefix: str = "") -> list[str]:  # noqa: ANN401 - nested dicts
    """Return every path of a nested info in order."""
    if not isinstance(info, dict):
        return [prefix]
    return [path for key, value in info.items() for path in keys_of(value, f"{prefix}.{key}")]


def assert_same_values(a: Snapshot, b: Snapshot) -> None:
    """Assert that two snapshots have bit-identical readings."""
    assert a.samples.keys() == b.samples.keys()
    for name, sample in a.samples.items():
        for field_name, values in sample.values.items():
            other = b.samples[name].values[field_name]
            assert values.dtype == other.dtype
            assert values.tobytes() == other.tobytes(), f"{name}.{field_name}: {values} is not {other}"
