"""The Gymnasium environment of one robot."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import gymnasium
from gymnasium.envs.registration import EnvSpec

from embodied_env.backends.backend import Backend, MessageSource, Observed, Recorded
from embodied_env.backends.backend_registry import DELAYED_BACKENDS, find_contract_of, make_backend
from embodied_env.backends.reported_delays import ReportedDelays
from embodied_env.contract import Contract, JointLimits
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.contract.contract_validation import suspected_degrees
from embodied_env.core.action_stage import ActionStage
from embodied_env.core.contract_blocks import check_blocks
from embodied_env.core.info_schema import without_host_timing
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.types import EpisodeStart, Observer
from embodied_env.envs.env_options import EnvOptions
from embodied_env.envs.filters_from_contract import recorded_files
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.observers import open_observers
from embodied_env.envs.option_checks import check_seed, draw_world_seed, rebuild, resolve_contract, split_options
from embodied_env.envs.render_modes import RENDER_MODES, Rendering
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.stepper_env import StepperEnv
from embodied_env.envs.transition_builder import copy_info, copy_observation
from embodied_env.errors import UsageError
from embodied_env.processes.scheduling import Scheduling
from embodied_env.processes.signals import close_at_exit, exit_on_sigterm
from embodied_env.safety.command_filters import make_command_filters
from embodied_env.tasks import Task, describe_task, is_shipped, load_task
from embodied_env.timing.clock import VirtualClock, make_clock
from embodied_env.timing.delay_model import load_delays

if TYPE_CHECKING:
    from embodied_env.envs.action_stages import ActionStages


_log = logging.getLogger(__name__)


class EmbodiedEnv(StepperEnv):
    """A robot, or a simulation of it, as a Gymnasium environment with accounted steps.

    Attributes:
        delays: the delays injected into the world (`delay_profile`), or None.
        evaluator_info: whether infos have the sensors with ``visibility: evaluator``.
        feed: tap of the ROS 2 messages of the backend's nodes, or None.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES)}  # noqa: RUF012 - each instance sets its own
    _spec: EnvSpec | None = None
    _start: EpisodeStart | None = None  # of the next reset

    def __init__(
        self, contract: str | Path | Contract | Mapping[str, Any] | None, **options: Unpack[EnvOptions]
    ) -> None:
        """Create an environment as in `make`, or of a contract in an `EnvSpec`, and start nothing."""
        self._options = options
        own, backend_options = split_options(options, EnvOptions.__optional_keys__, caller="EmbodiedEnv")
        backend, clock, pacing = own["backend"], own["clock"], own["pacing"]
        self.evaluator_info = checked_flag("evaluator_info", own["evaluator_info"])
        observers = own["observers"]
        if not isinstance(observers, (list, tuple)) or not all(isinstance(each, (str, Observer)) for each in observers):
            expected = "expected a list of names, or of objects with a method observe"
            raise UsageError(f"invalid observers: {observers!r} ({expected})")
        if contract is None:
            contract = find_contract_of(backend, backend_options)
        super().__init__(resolve_contract(contract), backend, clock)
        if not self.contract.trusted and backend != "replay":
            raise UsageError(
                f"contract of a run not trusted: {self.contract.name!r} with the backend {backend!r} "
                "(expected 'replay'); pass the contract's own name or file"
            )
        for path, problem in suspected_degrees(self.contract):
            gymnasium.logger.warn(f"{path}: {problem}")
        self._scheduling = Scheduling(fifo_priority=own["fifo_priority"], switch_interval_s=own["switch_interval_s"])
        the_clock = make_clock(clock)
        self.delays = None if own["delay_profile"] is None else load_delays(own["delay_profile"])
        world = self._make_world({"clock": the_clock, "pacing": pacing, **backend_options})
        self.pacing = "realtime" if world.capabilities.free_running else "lockstep"
        if pacing not in (None, self.pacing):
            raise UsageError(f"unsupported pacing for {world.name}: {pacing!r} (expected None or {self.pacing!r})")
        if self.pacing == "realtime" and (clock == "virtual" or isinstance(clock, VirtualClock)):
            raise UsageError(f"unsupported clock for {world.name} in real time: 'virtual' (expected 'steady')")
        self.feed: MessageTap | None = world.feed if isinstance(world, MessageSource) else None
        self.host_timing = self._has_host_timing(own["host_timing"])
        self.render_mode = own["render_mode"]
        self._rendering = Rendering(backend, world, self.contract, self.render_mode)
        self.metadata = self._rendering.metadata
        task, self.task_description = self._load_task(world)
        latency_s = self.contract.control_period_s if self.pacing == "realtime" else 0.0
        filters = make_command_filters(self.contract, latency_s=latency_s)
        self.contract_files = recorded_files(self.contract, filters)
        self._stages = self._make_stages(own["action_stages"], world)
        self._begun = False
        observing, self._views = open_observers(observers, own["view"], self.contract, self.pacing)
        for each in self._views:
            weakref.finalize(self, each.stop).atexit = False
        if isinstance(world, Observed):
            observing += world.observers
        self._is_observed = bool(observing)
        self.stepper = Stepper(
            self.contract,
            world,
            task,
            clock=the_clock,
            evaluator_info=self.evaluator_info,
            host_timing=self.host_timing or self._is_observed,
            observers=observing,
            filters=filters,
            stages=self._stages,
        )
        if self.pacing == "realtime":
            exit_on_sigterm()  # not possible in `reset` if a thread calls it
            weakref.finalize(self, _request_close, self.stepper, self._scheduling, os.getpid()).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the constructor's arguments, so that no copy is open."""
        return rebuild, (type(self), {**self._options, "contract": self.contract}, self.spec)

    def _has_host_timing(self, requested: bool | None) -> bool:  # noqa: FBT001 - the user's option
        is_paced = self.pacing == "realtime"
        if requested is None:
            return is_paced
        if not checked_flag("host_timing", requested) and is_paced:
            raise UsageError(
                f"unsupported host_timing for {self.backend_name} in real time: False (expected None or True)"
            )
        return requested

    def _load_task(self, world: Backend) -> tuple[Task, dict[str, Any]]:
        """Return the task and its description, or the recorded results of an untrusted task."""
        contract = self.contract
        is_trusted, file = contract.trusted or is_shipped(contract), None
        if isinstance(world, Recorded):
            is_trusted, file = is_trusted or world.trust_task, world.task_file
            if not is_trusted and file is None:
                nothing = {"type": contract.task.type, "version": None, "terms": None, "source_sha256": None}
                return world.recorded_task, nothing
        task = load_task(contract, trust=is_trusted, file=file)
        return task, describe_task(task, contract)

    def _make_stages(self, given: Sequence[str | ActionStage] | None, world: Backend) -> ActionStages | None:
        """Return the action stages, of which a replay has none, and use their space of actions."""
        if not isinstance(given, (list, tuple, type(None))):
            raise UsageError(f"invalid action_stages: {given!r} (expected a list of names, or of objects)")
        if isinstance(world, Recorded):
            return None
        of_contract = check_blocks(self.contract)
        if not (given or of_contract):
            return None
        from embodied_env.envs.action_stages import PlayedStages, make_action_stages  # noqa: PLC0415 - only where any

        if given is None:
            return PlayedStages(of_contract)
        stages = make_action_stages(self.contract, (*given, *of_contract))  # its own are the last ones before the gate
        if stages.action_space is not None:
            self.action_space = deepcopy(stages.action_space)
        return stages

    def _make_world(self, options: dict[str, Any]) -> Backend:
        """Build the backend, with injected delays if requested."""
        delays, backend = self.delays, self.backend_name
        if delays is None:
            return make_backend(backend, self.contract, **options)
        if backend not in DELAYED_BACKENDS or options["pacing"] == "realtime":
            real_time = " in real time" if options["pacing"] == "realtime" else ""
            raise UsageError(
                f"delay_profile not supported by {backend}{real_time} "
                f"(expected {' or '.join(DELAYED_BACKENDS)} in lockstep); use one of these, or omit delay_profile"
            )
        if "delays" in options:
            raise UsageError("delays given twice: by delay_profile and delays (expected delay_profile only)")
        return ReportedDelays(make_backend(backend, self.contract, delays=delays, **options), delays, self.contract)

    @property
    def spec(self) -> EnvSpec | None:
        """The specification, whose time limit is the horizon of a contract that truncates."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        episode = self.contract.episode
        if spec is not None and spec.max_episode_steps is None and episode.kind == "time_limit":
            spec = replace(spec, max_episode_steps=episode.horizon_steps)
        self._spec = spec

    @property
    def scheduling(self) -> dict[str, Any]:
        """The requested and actual scheduling of the stepping thread (`Scheduling.account`)."""
        return self._scheduling.account()

    @property
    def epoch(self) -> int:
        """The number of the episode, which never repeats, from 0, or -1 before the first reset."""
        return self.stepper.epoch

    @property
    def step_index(self) -> int:
        """The number of steps taken in this episode."""
        return self.stepper.step_index

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds `np_random`, from which the world seed of this and of every later reset is drawn. Episodes are
                counted from a seeded reset, so (seed, episode_index) identifies an episode.
            options: values for the contract's reset options; the others are drawn by the seed.

        Raises:
            gymnasium.error.Error: for a seed that is not an integer >= 0.
            UsageError: for an unknown option or a value outside its bounds, or a scheduling that is not permitted.
            BackendNotReadyError: while an ESTOP is latched; when the world does not start, homing fails, the operator
                declines, or a sensor has no newer reading.
            ClosedError: after `close`, except in lockstep with "fake" and "mujoco", which open again.
        """
        self._begun = False
        check_seed(seed)
        if self._stages is not None and self._start is None:
            self._stages.check_live()
        self.stepper.check_reset(options)  # a rejected reset draws no seed
        self._scheduling.begin()
        if self.pacing == "realtime":
            # not the stepper, which may be freed before its watchdog thread has closed the world
            close_at_exit(self.stepper.lifecycle, aside=self.capabilities.transport)
            exit_on_sigterm()
        super().reset(seed=seed)
        world_seed = draw_world_seed(self.np_random)
        start, self._start = self._start, None
        if start is not None:
            world_seed = world_seed if start.seed is None else start.seed
            options = {**start.options, **(options or {})}
        observation, info = self.stepper.reset(
            world_seed=world_seed, options=options, seeded=seed is not None, start=start
        )
        if self.render_mode is not None:
            self._rendering.begin(self.stepper.renderer)
        if self._is_observed and not (self.host_timing or self._is_recorded):
            info = without_host_timing(info)
        return observation, info

    def seek_episode(self, seed: int | None, episode_index: int) -> None:
        """Make the next unseeded reset that of an episode since `seed`, or only number it for None."""
        if seed is not None:
            super().reset(seed=seed)
            for _ in range(episode_index):
                draw_world_seed(self.np_random)
        self.stepper.set_next_episode(episode_index)

    def start_from(self, start: EpisodeStart) -> None:
        """Make the next reset begin like a recorded episode, with its seed and options.

        It begins at the recorded joint positions. A robot elsewhere drives there as it drives home. For a robot and a
        dry run the episode is rehearsed here, and the deviations are logged. On a robot, the next reset asks the
        operator before it moves. The action stages of the contract's blocks do not act in that episode, because the
        recorded actions are their output.

        Raises UsageError for an environment with ``action_stages``, which may be an operator who expects to act.
        """
        if self._options.get("action_stages"):
            problem = f"{start.label} cannot be played with action_stages: its actions are those after the stages"
            raise UsageError(f"{problem} (expected none); omit action_stages")
        if self.capabilities.world in ("robot", "dry run"):
            skipped = "" if self._stages is None else f"; without the action stages {', '.join(self._stages.names)}"
            start = replace(start, question=f"{start.rehearse()}{skipped}")
            _log.warning("%s", start.question)
        self._start = start

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Take one step of one control period.

        Any action is accepted, and never modified. A malformed one (NaN, wrong shape, wrong type) makes the robot brake
        and is reported in ``info["safety"]``, and after several in a row the episode is truncated. `NoAction` makes the
        robot hold for this step, and after ``policy.max_missed`` in a row the episode is truncated as `policy_lost`.

        Raises:
            ResetNeededError: outside an episode. Nothing is published.
            InternalFaultError: when the gate's own checks fail. Nothing is published, and the backend is halted.
            ClosedError: after `close`.
        """
        stepper = self.stepper
        if not self._begun:
            stepper.begin(action)
        self._begun = False
        done = stepper.finish()
        if self.render_mode is not None:
            self._rendering.update(stepper.renderer)
        info: Any = done.info
        if self._is_observed:  # an observer may keep its own, which has the durations
            info = copy_info(info if self.host_timing or self._is_recorded else without_host_timing(info))
        return copy_observation(done.observation), done.reward, done.terminated, done.truncated, info

    def begin(self, action: Any) -> None:  # noqa: ANN401
        """Publish the command and start the motion, which the next `step` finishes.

        The action of that `step` must be the same. So the worlds of many environments move at the same time, while
        their wrappers see an ordinary step. Raises like `step`.
        """
        self.stepper.begin(action)
        self._begun = True

    def abort_step(self) -> None:
        """Abandon a step that was begun and end the episode, or do nothing without one."""
        if self._begun:
            self._begun = False
            self.stepper.abort_step()

    def render(self) -> Any:  # noqa: ANN401 - Gymnasium's: an array, a list or None
        """Return an image of the world, uint8 (height, width, 3), with render_mode "rgb_array".

        With "rgb_array_list", every reset and step renders an image, and the list of those since the last call or reset
        is returned. With "human", every reset and step shows the world in a window, and None is returned.
        ``backends.<name>.render`` in the contract sets the size and the camera of images.

        Raises:
            ResetNeededError: before the first reset.
            ClosedError: after `close`.
            MissingDependencyError: when off-screen rendering is not possible here.
        """
        return self._rendering.render(self.stepper.renderer)

    def clear_estop(self) -> None:
        """Clear an ESTOP after an operator has resolved its cause, without motion before `reset`."""
        self.stepper.gate.clear_estop()

    def change_limits(self, changes: Mapping[str, JointLimits]) -> bool:
        """Tighten the limits of joints during operation by `SafetyGate.change_limits`."""
        return self.stepper.change_limits(changes)

    def close(self) -> None:
        """Brake, then free everything (idempotent)."""
        with ExitStack() as closing:  # also after an error of another one
            if self._stages is not None:
                closing.callback(self._stages.close)
            for each in self._views:
                closing.callback(each.close)
            closing.callback(self._scheduling.end)
            self.stepper.close()


def _request_close(stepper: Stepper, scheduling: Scheduling, pid: int) -> None:
    """Close after a garbage-collected environment, except in a forked process."""
    if os.getpid() == pid:
        stepper.lifecycle.request_close()
        scheduling.end()
