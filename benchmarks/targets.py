"""Every target, and the benchmark that measures it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from .harness import Estimate, Figures, Samples, estimate, excess, figure, ratio, slope

SMOKE_FACTOR = 1.5


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound of a figure, mostly of a ratio of two cases in the same round."""

    name: str
    definition: str
    figures: Figures
    at_most: float | None = None
    at_least: float | None = None  # one of the two, or neither: the figure is only reported
    is_rate: bool = False  # more is better, where there is no bound
    unit: str = ""
    is_in_smoke: bool = False

    @property
    def bound(self) -> str:
        """Return the bound as text; empty: none."""
        if self.at_most is None and self.at_least is None:
            return ""
        return (f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}") + self.unit

    def measured(self, samples: Samples) -> Estimate | None:
        """Return the figure; None where a case was not measured."""
        try:
            return estimate(self.figures(samples))
        except KeyError:
            return None

    def is_reached(self, found: Estimate) -> bool | None:
        """Return whether the median is within the bound; None: there is none."""
        if self.at_most is not None:
            return found.value <= self.at_most
        return None if self.at_least is None else found.value >= self.at_least

    def is_regression(self, found: Estimate, recorded: Estimate) -> bool:
        """Return whether a figure, with its interval, is worse than the recorded one by `SMOKE_FACTOR`."""
        if self.is_rate or self.at_least is not None:
            return found.high < recorded.value / SMOKE_FACTOR
        return found.low > recorded.value * SMOKE_FACTOR


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A measurement: the function that runs it, and the targets of its samples."""

    run: str  # module:function
    unit: str
    reference: str | None  # the case to which the others are compared
    targets: Sequence[Target]

    def measure(self, *, smoke: bool) -> Samples:
        """Run it; imports what it needs."""
        module, _, function = self.run.partition(":")
        samples: Samples = getattr(importlib.import_module(f"benchmarks.{module}"), function)(smoke=smoke)
        return samples

    @property
    def is_in_smoke(self) -> bool:
        """Return whether the smoke edition runs it."""
        return any(target.is_in_smoke for target in self.targets)


def _account(kind: str) -> Figures:
    return excess(f"embodied_env, {kind}", f"mj_step loop and mj_forward, {kind}", f"mj_step loop, {kind}")


BENCHMARKS = {
    "batched": Benchmark(
        run="batched:measure",
        unit="µs",
        reference="mujoco.rollout",
        targets=[
            Target(
                name="batched steps against `mujoco.rollout`",
                definition="steps/s of `make_vec` to those of `mujoco.rollout` with 2 threads, N = 64",
                figures=ratio("mujoco.rollout", "make_vec"),
                at_least=0.6,
            ),
            Target(
                name="batched steps against `SyncVectorEnv`",
                definition="steps/s of `make_vec` to those of `SyncVectorEnv` over the same environments, N = 64",
                figures=ratio("SyncVectorEnv", "make_vec"),
                is_rate=True,
                is_in_smoke=True,
            ),
            Target(
                name="batched steps against `AsyncVectorEnv`",
                definition="steps/s of `make_vec` to those of `AsyncVectorEnv`, N = 8",
                figures=ratio("AsyncVectorEnv, N = 8", "make_vec, N = 8"),
                is_rate=True,
            ),
            Target(
                name="batched steps against EAGERx",
                definition="steps/s of `make_vec`, N = 64, to those of EAGERx in one process",
                figures=ratio("EAGERx", "make_vec"),
                is_rate=True,
            ),
            Target(
                name="one environment against EAGERx",
                definition="steps/s of one environment to those of EAGERx in one process",
                figures=ratio("EAGERx", "one environment"),
                at_least=10.0,
            ),
        ],
    ),
    "batch_sizes": Benchmark(
        run="batched:measure_sizes",
        unit="µs",
        reference="N = 64",
        targets=[
            Target(
                name="cost linear in N",
                definition="time of `make_vec` per environment, N = 1024 to N = 64",
                figures=ratio("N = 1024", "N = 64"),
                at_most=1.15,
            )
        ],
    ),
    "batch_memory": Benchmark(
        run="batched:measure_memory",
        unit="kB",
        reference=None,
        targets=[
            Target(
                name=f"memory, {name}",
                definition="resident memory of one environment more, beyond its model if that is drawn, N = 64 to 1024",
                figures=figure(name),
                at_most=200.0,
                unit=" kB",
            )
            for name in ("arm_reach", "every model drawn")
        ],
    ),
    "single_step": Benchmark(
        run="single_step:measure",
        unit="µs",
        reference="mj_step loop, kept",
        targets=[
            Target(
                name="one step in process",
                definition="`env.step` to the bare loop of `mj_step`",
                figures=ratio("embodied_env, kept", "mj_step loop, kept"),
                at_most=1.8,
            ),
            Target(
                name="account, actions kept",
                definition="`env.step` less physics and `mj_forward`, to the bare loop",
                figures=_account("kept"),
                at_most=0.6,
            ),
            Target(
                name="account, all actions limited",
                definition="`env.step` less physics and `mj_forward`, to the bare loop; every action is limited",
                figures=_account("limited"),
                at_most=0.6,
            ),
            Target(
                name="account against a piece of Python",
                definition="`env.step` less physics and `mj_forward`, to `copy.deepcopy` of a small record",
                figures=excess("embodied_env, kept", "mj_step loop and mj_forward, kept", "copy.deepcopy"),
                is_in_smoke=True,
            ),
        ],
    ),
    "recorded_step": Benchmark(
        run="single_step:measure_recorded",
        unit="µs",
        reference="not recorded, p50",
        targets=[
            Target(
                name="spikes while recording",
                definition="p99 of a recorded step in process to its p50, 5000 steps a round",
                figures=ratio("recorded, p99", "recorded, p50"),
                at_most=3.0,
            )
        ],
    ),
    "over_ros": Benchmark(
        run="over_ros:measure",
        unit="µs",
        reference="typed WaitSet",
        targets=[
            Target(
                name="recorded step over ROS 2",
                definition="recorded `env.step` to a typed WaitSet",
                figures=ratio("env.step, recorded", "typed WaitSet"),
                at_most=1.5,
            ),
            Target(
                name="recorded step against `spin_once`",
                definition="recorded `env.step` to `spin_once` in the caller",
                figures=ratio("env.step, recorded", "spin_once"),
                at_most=1.15,
            ),
            Target(
                name="recorded step against a background executor",
                definition="recorded `env.step` to an executor in a thread",
                figures=ratio("env.step, recorded", "background"),
                at_most=0.45,
            ),
            Target(
                name="step without the recorder",
                definition="`env.step` to `spin_once` in the caller",
                figures=ratio("env.step", "spin_once"),
                is_in_smoke=True,
            ),
            Target(
                name="one more small topic",
                definition="time of `env.step` with 8 sensors more, less that without, for each",
                figures=slope("env.step, 8 sensors more", "env.step", 8),
                at_most=60.0,
                unit=" µs",
            ),
        ],
    ),
    "several_simulators": Benchmark(
        run="several_simulators:measure",
        unit="µs",
        reference=None,
        targets=[
            Target(
                name="four simulators over ROS 2",
                definition="steps/s, N = 4, to those of cores that are never idle, by CPU time of client and servers",
                figures=figure("N = 4, share"),
                at_least=0.8,
            )
        ],
    ),
    "pacing": Benchmark(
        run="pacing:measure",
        unit="µs",
        reference=None,
        targets=[
            *(
                Target(
                    name=f"{name} while recording",
                    definition=f"{name} of ours less that of a plain loop, to the account's own time, 100 Hz",
                    figures=excess(f"embodied_env, {key}", f"plain loop, {key}", "embodied_env, account"),
                    at_most=1.0,
                )
                for name, key in (("mean lateness", "mean"), ("p99 of lateness", "p99"))
            ),
            Target(
                name="p99 of lateness against rtgym",
                definition="p99 of lateness to that of rtgym, which records nothing",
                figures=ratio("embodied_env, p99", "rtgym, p99"),
            ),
            Target(
                name="mean rate",
                definition="error of the mean rate over 5 s",
                figures=figure("embodied_env, rate error, %"),
                at_most=0.1,
                unit=" %",
            ),
        ],
    ),
    "images": Benchmark(
        run="images:measure",
        unit="µs",
        reference=None,
        targets=[
            Target(
                name="steady 640x480 images",
                definition="p95 to p50 from the request of a frame to its array, with the Fast DDS profile",
                figures=ratio("640x480, profile, p95", "640x480, profile, p50"),
                at_most=1.6,
            ),
            Target(
                name="no image lost",
                definition="lost frames in a round, with the profile",
                figures=figure("640x480, profile, lost"),
                at_most=0.0,
            ),
        ],
    ),
    "policy_server": Benchmark(
        run="policy_server:measure",
        unit="µs",
        reference="bare client, bare server",
        targets=[
            Target(
                name="remote inference",
                definition="`openpi://` and `serve` with a null policy and two 224x224 images, to bare `websockets`",
                figures=ratio("openpi:// client, serve", "bare client, bare server"),
                at_most=1.3,
            )
        ],
    ),
    "imports": Benchmark(
        run="imports:measure",
        unit="ms",
        reference="gymnasium",
        targets=[
            Target(
                name="import",
                definition="`import embodied_env` to `import gymnasium`",
                figures=ratio("embodied_env", "gymnasium"),
                at_most=1.3,
            )
        ],
    ),
}
