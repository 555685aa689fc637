"""The Gymnasium environment of one robot, and `make`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import gymnasium
import gymnasium.wrappers
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from embodied_env.backends.base import Backend, Capabilities, MessageSource, Observed, RecordedResults
from embodied_env.backends.delay_injection import PeriodDelays, ReportedDelays
from embodied_env.backends.registry import NATIVE_DELAY_BACKENDS, make_backend
from embodied_env.contract import Contract, JointLimits, load_contract
from embodied_env.contract.loader import SAVED, restore_contract, save_contract
from embodied_env.contract.plausibility import suspected_degrees
from embodied_env.core.arguments import checked_count, checked_flag, checked_path
from embodied_env.core.clock import Clock, VirtualClock, make_clock
from embodied_env.core.latency.delay_model import DelayModel, load_delays
from embodied_env.core.latency.profile import LatencyProfile
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.process.scheduling import Scheduling
from embodied_env.core.process.signals import close_at_exit, exit_on_sigterm
from embodied_env.core.types import Observer, Snapshot, Transition
from embodied_env.envs.filters_from_contract import make_command_filters, recorded_files
from embodied_env.envs.info import copy_step_result
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.world_seed import draw_world_seed
from embodied_env.errors import UsageError
from embodied_env.tasks import Task, describe_task, is_shipped, load_task

Observation = dict[str, NDArray[Any]]


class EmbodiedEnv(gymnasium.Env[Observation, Any]):
    """A robot, or a world that stands for it, as a Gymnasium environment in which every step is accounted for.

    Attributes:
        contract: the contract in force.
        last_transition: the last step's full account, or None.
        backend_name: which world is behind it.
        clock_name: which clock is under the ledger.
        delays: what is put into the world (`delay_profile`), or None.
        pacing: who waits for whom; "lockstep": the world waits for the agent; "realtime": the agent for the world.
        feed: gets the ROS 2 messages of the backend's nodes; None: it has none.
        task_description: what the manifest says of the task (`embodied_env.tasks.describe_task`).
        contract_files: what a replay needs of the files that the contract names, by name.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012 - each instance says its own

    def __init__(  # noqa: PLR0913 - the public options
        self,
        contract: str | Path | Contract | Mapping[str, Any] | None,
        *,
        backend: str = "mujoco",
        pacing: str | None = None,
        render_mode: str | None = None,
        clock: str | Clock | None = None,
        evaluator_info: bool = False,
        spawn: bool = True,
        namespace: str | None = None,
        observers: Sequence[Observer] = (),
        fifo_priority: int | None = None,
        switch_interval_s: float | None = None,
        delay_profile: str | Path | LatencyProfile | DelayModel | None = None,
        **backend_options: Any,  # noqa: ANN401 - the backend checks its options
    ) -> None:
        """See `make`; nothing is started before the first `reset`. A mapping is what `make` puts into a spec."""
        evaluator_info = checked_flag("evaluator_info", evaluator_info)
        observers = _checked_observers(observers)
        if contract is None:
            contract = _contract_of_run(backend, backend_options)
        self.contract = contract_from_spec(contract) if isinstance(contract, Mapping) else load_contract(contract)
        if not self.contract.trusted and backend != "replay":
            raise UsageError(
                f"contract of a run not used: {self.contract.name!r} with {backend!r} (expected 'replay'); "
                "give the contract's own name or file"
            )
        for path, problem in suspected_degrees(self.contract):
            gymnasium.logger.warn(f"{path}: {problem}")
        self.backend_name = backend
        self.clock_name = clock if isinstance(clock, str) else "steady" if clock is None else type(clock).__name__
        self.render_mode = render_mode
        self.observation_space = cast("gymnasium.Space[Observation]", deepcopy(self.contract.observation_space))
        self.action_space = deepcopy(self.contract.action_space)  # seeding one environment's must not seed another's
        if not checked_flag("spawn", spawn):
            backend_options["spawn"] = False
        if namespace is not None:
            backend_options["namespace"] = namespace
        self._scheduling = Scheduling(fifo_priority=fifo_priority, switch_interval_s=switch_interval_s)
        the_clock = make_clock(clock)
        self.delays = None if delay_profile is None else load_delays(delay_profile)
        if self.delays is None:
            world = make_backend(backend, self.contract, clock=the_clock, pacing=pacing, **backend_options)
        else:
            given = {"clock": the_clock, "pacing": pacing, **backend_options}
            world = _delayed(backend, self.contract, self.delays, given)
        self.pacing = _pacing(pacing, clock, world)
        self.feed: MessageTap | None = world.feed if isinstance(world, MessageSource) else None
        render_modes = world.capabilities.render_modes
        if render_mode not in (None, *render_modes):
            offered = ", ".join(map(repr, (None, *render_modes)))
            raise UsageError(f"render_mode={render_mode!r} is not available with {backend} here; allowed: {offered}")
        self.metadata = {
            "render_modes": list(render_modes),
            "render_fps": max(1, round(1 / self.contract.control_period_s)),
        }
        self._begun = False
        task, self.task_description = _task_in(world, self.contract)
        shapers = make_command_filters(self.contract, latency_s=_latency_s(self.contract, world))
        self.contract_files = recorded_files(self.contract, shapers)
        self._stepper = Stepper(
            self.contract,
            world,
            task,
            clock=the_clock,
            evaluator_info=evaluator_info,
            observers=(*observers, *(world.observers if isinstance(world, Observed) else ())),
            shapers=shapers,
        )
        if self.pacing == "realtime":
            exit_on_sigterm()  # here already: `reset` may be called in a thread, which cannot
            weakref.finalize(self, _orphan, self._stepper, self._scheduling, os.getpid()).atexit = False

    @property
    def capabilities(self) -> Capabilities:
        """What the world behind it can do."""
        return self._stepper.capabilities

    @property
    def last_transition(self) -> Transition | None:
        """The full account of the last step, or None before the first."""
        return self._stepper.last_transition

    @property
    def last_reset(self) -> Snapshot | None:
        """What the last reset read and did, or None before the first."""
        return self._stepper.last_reset

    @property
    def _on_waiting(self) -> Callable[[], None] | None:
        """The recorder's hook: called in each step while the world moves."""
        return self._stepper.on_waiting

    @_on_waiting.setter
    def _on_waiting(self, call: Callable[[], None] | None) -> None:
        self._stepper.on_waiting = call

    @property
    def scheduling(self) -> dict[str, Any]:
        """What was asked of the scheduler of the stepping thread, and what is in force (`Scheduling.account`)."""
        return self._scheduling.account()

    @property
    def epoch(self) -> int:
        """The number of the episode: it counts resets from 0, and never repeats. -1 before the first reset."""
        return self._stepper.epoch

    @property
    def step_index(self) -> int:
        """How many steps of this episode were taken."""
        return self._stepper.step_index

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds `np_random`, from which the world's seed of this and of every later reset is drawn. Episodes
                are counted from a seeded reset: (seed, episode_index) names an episode for good.
            options: values for the contract's reset options; what is not given is drawn by the seed.

        Raises:
            UsageError: for an unknown option or a value outside its bounds, or a scheduling that is not permitted.
            BackendNotReadyError: when the world does not come up, or the reset cannot be verified.
            ClosedError: after `close`.
        """
        self._begun = False
        self._stepper.check_reset(options)  # a reset that is refused draws no seed
        self._scheduling.begin()
        if self.pacing == "realtime":
            close_at_exit(self._stepper, aside=self.capabilities.transport)
            exit_on_sigterm()
        super().reset(seed=seed)
        world_seed = draw_world_seed(self.np_random)
        result = self._stepper.reset(world_seed=world_seed, options=options, seeded=seed is not None)
        if self.render_mode == "human":
            self._stepper.show()
        return result

    def seek_episode(self, seed: int | None, episode_index: int) -> None:
        """Let the next reset without a seed be that of `episode_index`, counted from a reset with `seed`.

        So an episode of a long run can be had by itself, and is the same. With `seed` None only the number is set.
        """
        if seed is not None:
            super().reset(seed=seed)
            for _ in range(episode_index):
                draw_world_seed(self.np_random)
        self._stepper.set_next_episode(episode_index)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Take one step of one control period.

        Any action is accepted and none is written to: a malformed one (NaN, wrong shape, wrong type) makes the robot
        brake and is reported in ``info["safety"]``; after several in a row the episode is truncated.

        Raises:
            ResetNeededError: outside an episode. Nothing is published.
            ClosedError: after `close`.
        """
        if not self._begun:
            self._stepper.begin(action)
        self._begun = False
        done = self._stepper.finish()
        if self.render_mode == "human":
            self._stepper.show()
        return copy_step_result(done)

    def begin(self, action: Any) -> None:  # noqa: ANN401
        """Begin a step: the command is published, and the world moves. The next `step` finishes it.

        So the worlds of many environments move at the same time, and their wrappers see a step like any other: give
        that `step` the same action. Raises as `step` does.
        """
        self._stepper.begin(action)
        self._begun = True

    def abort_step(self) -> None:
        """Give up a step that was begun; the episode is over. Nothing happens where none was."""
        if self._begun:
            self._begun = False
            self._stepper.abort_step()

    def use_executor(self, executor: Executor) -> bool:
        """Let threads of `executor` compute the world between `begin` and `step`; False: it cannot be."""
        return self._stepper.use_executor(executor)

    def render(self) -> Any:  # noqa: ANN401 - Gymnasium's: an array, or None
        """Return a picture of the world, uint8 (height, width, 3), with render_mode "rgb_array".

        With "human" every reset and step shows it already. The view is the contract's: ``backends.<name>.render``.

        Raises:
            ResetNeededError: before the first reset.
            MissingDependencyError: when nothing here can render off screen.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(f"render() without a render_mode; allowed: {self.metadata['render_modes']}")
            return None
        return self._stepper.render() if self.render_mode == "rgb_array" else None

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step: ``mark("policy")`` right after inference (`Ledger.mark`)."""
        self._stepper.mark(name)

    def clear_estop(self) -> None:
        """Clear an ESTOP, for a person who has seen why: nothing moves before `reset`. No step and no reset does it."""
        self._stepper.clear_estop()

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Tighten the limits of joints while the robot runs; see `SafetyGate.change_limits`."""
        return self._stepper.change_limits(changes)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that was started for this environment."""
        return self._stepper.processes()

    def close(self) -> None:
        """Brake, then free everything. Idempotent."""
        try:
            self._stepper.close()
        finally:
            self._scheduling.end()


def _orphan(stepper: Stepper, scheduling: Scheduling, pid: int) -> None:
    """Close what an environment that nobody holds any more has left; a fork has a copy of it, which is not its own."""
    if os.getpid() == pid:
        stepper.orphan()
        scheduling.end()


def make(
    contract: str | Path | Contract | None = None,
    *,
    record: str | Path | None = None,
    record_messages: bool = False,
    max_episode_steps: int | None = None,
    **options: Any,  # noqa: ANN401 - EmbodiedEnv checks them
) -> gymnasium.Env[Any, Any]:
    """Make an environment from a contract.

    ``env.spec`` makes the same environment again, and has a JSON form (``to_json``) if the other options have one. A
    Contract is in it whole; a name or a path is looked up anew.

    Args:
        contract: the name of a shipped contract, a path to a YAML file, or a Contract; None, with the backend
            "replay": the one that the run was recorded under.
        record: a folder; the run is recorded into a new run directory in it (`RecordTransitions`).
        record_messages: record the raw ROS 2 messages too (``messages.mcap``); for a backend over ROS 2.
        max_episode_steps: an outer `TimeLimit` beside the contract's own horizon. It shows in the wrapper stack.
        **options: what `EmbodiedEnv` takes: `backend` ("mujoco", "mujoco_ros", "gazebo", "real", "fake", "replay" or a
            third party's),
            `pacing` ("lockstep": the world waits for the agent; "realtime": it moves on while the agent thinks; None:
            the backend's default), `render_mode`, `clock` ("steady" or "virtual"), `evaluator_info`, `spawn`,
            `namespace`, `observers`, `fifo_priority` (1 to 99: the stepping thread runs under ``SCHED_FIFO`` from the
            reset to `close`), `switch_interval_s` (of the interpreter, for policies in threads of Python),
            `delay_profile` (a latency_profile.json, a LatencyProfile or a DelayModel: its delays are put into a world
            that waits, in simulated time, by the seed; ``info["latency"]["injected"]``), and the options of the
            backend.

    Raises:
        ContractError: when the contract is wrong.
        UsageError: for an unknown backend or option, or a value that an option does not take.
        MissingDependencyError: when an optional package is not installed.
    """
    if max_episode_steps is not None:
        max_episode_steps = checked_count("max_episode_steps", max_episode_steps, at_least=1)
    if record is not None:
        record = checked_path("record", record)
    if checked_flag("record_messages", record_messages) and record is None:
        raise UsageError("record_messages=True is not allowed with record=None; allowed: a folder to record into")
    embodied = EmbodiedEnv(contract, **options)
    embodied.spec = EnvSpec(
        id=f"embodied_env/{_to_camel_case(embodied.contract.name)}-v0",
        entry_point="embodied_env.envs.embodied_env:EmbodiedEnv",
        kwargs={"contract": _in_spec(contract, embodied), **options},
        max_episode_steps=max_episode_steps,
        order_enforce=False,  # the stepper orders calls itself
        disable_env_checker=True,
    )
    env: gymnasium.Env[Any, Any] = embodied
    if max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, max_episode_steps)
    if record is not None:
        from embodied_env.record import RecordTransitions  # noqa: PLC0415 - recording is optional

        env = RecordTransitions(env, record, messages=record_messages)
    return env


def _checked_observers(observers: Sequence[Observer]) -> tuple[Observer, ...]:
    if not isinstance(observers, (list, tuple)) or not all(isinstance(each, Observer) for each in observers):
        raise UsageError(f"observers={observers!r} is not allowed; allowed: a list of objects with a method observe")
    return tuple(observers)


def _pacing(asked: str | None, clock: str | Clock | None, world: Backend) -> str:
    """Return who waits for whom; raises UsageError for what `world` cannot."""
    free_running = world.capabilities.free_running
    pacing = "realtime" if free_running else "lockstep"
    if asked not in (None, pacing):
        raise UsageError(f"pacing={asked!r} is not available with {world.name}; allowed: None, {pacing!r}")
    if free_running and (clock == "virtual" or isinstance(clock, VirtualClock)):
        raise UsageError(f"clock='virtual' is not available with {world.name}: it moves by itself; allowed: 'steady'")
    return pacing


def _delayed(backend: str, contract: Contract, delays: DelayModel, options: dict[str, Any]) -> Backend:
    """Make a world with delays, of these options of `make_backend`: it does them itself where it can."""
    if options["pacing"] == "realtime" or backend not in NATIVE_DELAY_BACKENDS:
        return PeriodDelays(make_backend(backend, contract, **options), delays, contract)
    if "delays" in options:
        raise UsageError("delays are given twice; allowed: delay_profile, which is told in the account")
    return ReportedDelays(make_backend(backend, contract, delays=delays, **options), delays, contract)


def _latency_s(contract: Contract, world: Backend) -> float:
    """Return how late a command may act where the world moves by itself: a control period, so that dt may vary too."""
    return contract.control_period_s if world.capabilities.free_running else 0.0


def _in_spec(contract: str | Path | Contract | None, made: EmbodiedEnv) -> str | dict[str, Any]:
    if contract is None:
        contract = made.contract
    return save_contract(contract) if isinstance(contract, Contract) else str(contract)


def _contract_of_run(backend: str, options: Mapping[str, Any]) -> Contract:
    """Return the contract of the run that is to be played back."""
    if backend != "replay" or "run" not in options:
        raise UsageError(f'contract=None is not available with {backend}; allowed with backend="replay", run=...')
    from embodied_env.backends.replay import recorded_contract  # noqa: PLC0415 - the record is optional
    from embodied_env.record import Run, read_run  # noqa: PLC0415

    run = options["run"]
    return recorded_contract(run if isinstance(run, Run) else read_run(run))


def _task_in(world: Backend, contract: Contract) -> tuple[Task, dict[str, Any]]:
    """Return the task and its description; where the world is a run of a task without trust, the recorded results."""
    is_trusted, file = contract.trusted or is_shipped(contract), None
    if isinstance(world, RecordedResults):
        is_trusted, file = is_trusted or world.trust_task, world.task_file
        if not is_trusted and file is None:
            nothing = {"type": contract.task.type, "version": None, "terms": None, "source_sha256": None}
            return world.recorded_task, nothing
    task = load_task(contract, trust=is_trusted, file=file)
    return task, describe_task(task, contract)


def contract_from_spec(saved: Mapping[str, Any]) -> Contract:
    """Return the contract that `make` has put into a spec; raises UsageError for any other mapping."""
    if saved.keys() != SAVED:
        raise UsageError(f"a contract cannot be a mapping of {', '.join(map(repr, saved))}; allowed: one of `make`'s")
    return restore_contract(saved)


def _to_camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
