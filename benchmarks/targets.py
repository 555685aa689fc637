"""Every target, and the benchmark that measures it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from .harness import Estimate, Figures, Samples, difference, estimate, excess, figure, idle_rate, ratio


@dataclass(frozen=True)
class Target:
    """A bound of a figure, mostly of a ratio of two cases in the same round."""

    definition: str
    figures: Figures
    _: KW_ONLY
    at_most: float | None = None
    at_least: float | None = None  # one of the two, or neither: the figure is only reported
    is_rate: bool = False  # more is better, where there is no bound
    unit: str = ""
    smoke_factor: float = 0.0  # the smoke edition fails if the figure is worse than the recorded one by it; 0: not run

    @property
    def bound(self) -> str:
        """Return the bound as text, which is empty without a bound."""
        if self.at_most is None and self.at_least is None:
            return ""
        return (f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}") + self.unit

    def measured(self, samples: Samples) -> Estimate | None:
        """Return the figure, or None where a case was not measured."""
        try:
            return estimate(self.figures(samples))
        except KeyError:
            return None

    def is_reached(self, found: Estimate) -> bool | None:
        """Return whether the median is within the bound, or None without a bound."""
        if self.at_most is not None:
            return found.value <= self.at_most
        return None if self.at_least is None else found.value >= self.at_least

    def is_regression(self, found: Estimate, recorded: Estimate) -> bool:
        """Return whether a figure, with its interval, is worse than the recorded one by `smoke_factor`."""
        if self.is_rate or self.at_least is not None:
            return found.high < recorded.value / self.smoke_factor
        return found.low > recorded.value * self.smoke_factor


@dataclass(frozen=True)
class Benchmark:
    """Measurement with the function that runs it and the targets of its samples."""

    run: str  # module:function
    targets: Sequence[Target]
    _: KW_ONLY
    unit: str = "µs"
    reference: str | None = None  # the case to which the others are compared

    def measure(self, *, smoke: bool) -> Samples:
        """Import the module of the benchmark and run it."""
        module, _, function = self.run.partition(":")
        samples: Samples = getattr(importlib.import_module(f"benchmarks.{module}"), function)(smoke=smoke)
        return samples

    @property
    def is_in_smoke(self) -> bool:
        """Return whether the smoke edition runs it."""
        return any(target.smoke_factor for target in self.targets)


def _rollout_share(of: str, *, is_by_cpu: bool = False) -> Target:
    rollout, ours = (f"{name}{of and f', {of}'}" for name in ("mujoco.rollout", "make_vec"))
    return Target(
        f"steps/s of `make_vec` to `mujoco.rollout` with 2 threads, {of or 'N = 64'}{', by CPU time' * is_by_cpu}",
        idle_rate(rollout, ours, 2) if is_by_cpu else ratio(rollout, ours),
        at_least=0.85 if "256" in of else 0.75,
    )


BENCHMARKS = {
    "step_counts": Benchmark(
        "step_counts:measure",
        [
            Target("Python calls of a step, actions kept", figure("Python calls, kept"), at_most=80, smoke_factor=1.02),
            Target("Python calls of a step, all actions limited", figure("Python calls, limited")),
            Target(
                "instructions of a step above its physics, actions kept",
                difference("kept", "physics, kept"),
                at_most=620,
                unit=" k",
                smoke_factor=1.02,
            ),
            Target(
                "instructions of a step above its physics, all actions limited",
                difference("limited", "physics, limited"),
                unit=" k",
            ),
        ],
        unit="thousand instructions",
    ),
    "single_step": Benchmark(
        "single_step:measure",
        [
            Target(
                f"`env.step` in process to the bare loop of `mj_step`, {actions}",
                ratio(f"embodied_env, {kind}", f"mj_step loop, {kind}"),
                at_most=bound,
            )
            for kind, actions, bound in (("kept", "actions kept", 1.9), ("limited", "all actions limited", 2.1))
        ],
        reference="mj_step loop, kept",
    ),
    "recorded_step": Benchmark(
        "single_step:measure_recorded",
        [Target("p99 to p50 of a recorded step in process", ratio("recorded, p99", "recorded, p50"), at_most=3.0)],
        reference="not recorded, p50",
    ),
    "recording": Benchmark(
        "recording:measure",
        [
            *(
                Target(
                    f"CPU of recording two images of 640x480 to the plain `Writer` of mcap, {compression}",
                    ratio(f"embodied_env, {compression}", f"Writer, {compression}"),
                    at_most=1.3,
                )
                for compression in ("zstd", "lz4", "none")
            ),
        ],
        reference="Writer, none",
    ),
    "batched": Benchmark(
        "batched:measure",
        [
            *(_rollout_share(of) for of in ("", "N = 256", "drawn")),
            Target(
                "steps/s of `make_vec` to `SyncVectorEnv`, N = 64",
                ratio("SyncVectorEnv", "make_vec"),
                is_rate=True,
                smoke_factor=1.5,
            ),
            Target(
                "steps/s of `make_vec` to `AsyncVectorEnv`, N = 8",
                ratio("AsyncVectorEnv, N = 8", "make_vec, N = 8"),
                is_rate=True,
            ),
            Target(
                "steps/s of `make_vec`, N = 64, to EAGERx in one process", ratio("EAGERx", "make_vec"), is_rate=True
            ),
            Target(
                "steps/s of one environment to EAGERx in one process", ratio("EAGERx", "one environment"), at_least=10.0
            ),
        ],
        reference="mujoco.rollout",
    ),
    "batch_cpu": Benchmark(
        "batched:measure_cpu",
        [_rollout_share(of, is_by_cpu=True) for of in ("", "N = 256", "drawn")],
        reference="mujoco.rollout",
    ),
    "batch_recorded": Benchmark(
        "batched:measure_recorded",
        [
            Target(
                f"recorded `make_vec` to unrecorded, N = 64, {clock}, {actions}",
                ratio(f"recorded, {actions}, {clock}", f"make_vec, {actions}, {clock}"),
                at_most=2.5,
                smoke_factor=2.0,
            )
            for clock in ("wall", "CPU")
            for actions in ("kept", "random actions and autoreset")
        ],
        reference="make_vec, kept, wall",
    ),
    "batch_sizes": Benchmark(
        "batched:measure_sizes",
        [Target("time of `make_vec` per environment, N = 1024 to N = 64", ratio("N = 1024", "N = 64"), at_most=1.15)],
        reference="N = 64",
    ),
    "batch_memory": Benchmark(
        "batched:measure_memory",
        [
            Target(
                f"memory of one more environment beyond `mujoco.batch`, {name}, N = 64 to 1024",
                difference(name, own),
                at_most=100.0,
                unit=" kB",
            )
            for name, own in (("arm_reach", "mujoco.batch"), ("every model drawn", "mujoco.batch, every model drawn"))
        ],
        unit="kB",
    ),
    "over_ros": Benchmark(
        "over_ros:measure",
        [
            Target(
                "client's CPU time of `env.step` to `spin_once` over the same topics",
                ratio("env.step, CPU", "spin_once, CPU"),
                at_most=1.0,
                smoke_factor=1.5,
            ),
            Target(
                "recorded `env.step` to a typed WaitSet",
                ratio("env.step, recorded, wall", "typed WaitSet, wall"),
                at_most=1.5,
            ),
            Target(
                "recorded `env.step` to `spin_once`", ratio("env.step, recorded, wall", "spin_once, wall"), at_most=1.15
            ),
            Target("`env.step` to `spin_once`", ratio("env.step, wall", "spin_once, wall")),
        ],
        reference="typed WaitSet, wall",
    ),
    "several_simulators": Benchmark(
        "several_simulators:measure",
        [Target("steps/s of 4 simulators to cores that are never idle", figure("N = 4, share"), at_least=0.8)],
    ),
    "pacing": Benchmark(
        "pacing:measure",
        [
            *(
                Target(
                    f"{key} lateness, less that of a plain loop, to {key} account",
                    excess(f"embodied_env, {key}", f"plain loop, {key}", f"embodied_env, account, {key}"),
                    at_most=1.0,
                )
                for key in ("mean", "p99")
            ),
            Target("p99 lateness to rtgym, which records nothing", ratio("embodied_env, p99", "rtgym, p99")),
            Target("error of the mean rate over 5 s", figure("embodied_env, rate error, %"), at_most=0.1, unit=" %"),
        ],
    ),
    "images": Benchmark(
        "images:measure",
        [
            Target(
                "p95 to p50 of a 640x480 frame, with the Fast DDS profile",
                ratio("640x480, profile, p95", "640x480, profile, p50"),
                at_most=1.6,
            ),
            Target("lost 640x480 frames, with the Fast DDS profile", figure("640x480, profile, lost"), at_most=0.0),
        ],
    ),
    "policy_server": Benchmark(
        "policy_server:measure",
        [
            Target(
                "`openpi://` and `serve` to bare `websockets`",
                ratio("openpi:// client, serve", "bare client, bare server"),
                at_most=1.3,
            )
        ],
        reference="bare client, bare server",
    ),
    "imports": Benchmark(
        "imports:measure",
        [Target("`import embodied_env` to `import gymnasium`", ratio("embodied_env", "gymnasium"), at_most=1.3)],
        unit="ms",
        reference="gymnasium",
    ),
    "starts": Benchmark(
        "imports:measure_starts",
        [
            Target(
                "CPU time of `evaluate --help` to that of importing NumPy and Gymnasium",
                ratio("evaluate --help", "numpy, gymnasium"),
                at_most=1.3,
            ),
            Target(
                "CPU time of a first `make` to that of importing NumPy and Gymnasium",
                ratio("make", "numpy, gymnasium"),
                at_most=3.0,
            ),
        ],
        unit="ms",
        reference="numpy, gymnasium",
    ),
}
