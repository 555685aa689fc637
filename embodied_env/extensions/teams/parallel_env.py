"""The PettingZoo parallel environment of several robots in one world, and `parallel_env`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from embodied_env.backends.backend import Renderable
from embodied_env.backends.backend_registry import make_backend
from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_flag, checked_path
from embodied_env.contract.runtime_values import checked_options
from embodied_env.contract.value_checks import one_of
from embodied_env.core.contract_blocks import check_blocks
from embodied_env.core.types import ResetReport, Transition
from embodied_env.envs.env_options import SharedOptions
from embodied_env.envs.filters_from_contract import recorded_files
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.option_checks import check_seed, draw_world_seed, split_options
from embodied_env.envs.render_modes import Rendering
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.stepper_env import StepperEnv
from embodied_env.envs.stepper_state import check_open
from embodied_env.envs.transition_builder import copy_observation
from embodied_env.errors import MissingDependencyError, ResetNeededError, UsageError
from embodied_env.extensions.teams.shared_backend import AgentBackend, SharedBackend
from embodied_env.extensions.teams.team_file import WORLD, Team, load_team, name_in_world
from embodied_env.safety.command_filters import make_command_filters
from embodied_env.tasks import describe_task, load_task
from embodied_env.timing.clock import Clock, make_clock

if TYPE_CHECKING:
    from embodied_env.record import RecordTransitions

try:
    from pettingzoo import ParallelEnv
except ImportError:
    raise MissingDependencyError("pettingzoo", needed_for="several robots in one world") from None

_UNSUPPORTED = {
    "pacing": "a shared world is always in lockstep",
    "delay_profile": "delays apply to the world of a single robot",
    "delays": "delays apply to the world of a single robot",
    "max_episode_steps": "each contract has its own horizon",
    "record_messages": "the messages of a shared world belong to no single robot",
    "view": "a view shows a single robot",
    "action_stages": "a stage acts for a single robot",
}


class TeamOptions(SharedOptions, total=False):
    """The options of `parallel_env`, which describes them."""

    record: str | Path | None


class AgentEnv(StepperEnv):
    """One robot of a team, as a recorder sees it.

    All robots begin a step before the first one finishes it.

    Attributes:
        stepper: steps the robot.
        world_seed: seed of the next reset.
    """

    def __init__(
        self, view: AgentBackend, clock: Clock, names: tuple[str, str], *, evaluator_info: bool, host_timing: bool
    ) -> None:
        """Wrap one robot's view of the world, with `names` of backend and clock."""
        contract = view.contract
        super().__init__(contract, *names)
        self.host_timing = host_timing
        self.world_seed = 0
        if stages := check_blocks(contract):
            raise UsageError(f"action stages not supported for a team: {', '.join(stages)} (expected none)")
        task, filters = load_task(contract, trust=True), make_command_filters(contract)
        self.stepper = Stepper(
            contract,
            view,
            task,
            clock=clock,
            evaluator_info=evaluator_info,
            host_timing=host_timing,
            filters=filters,
            advances_clock=False,  # otherwise a virtual clock would advance once per robot
        )
        self.task_description = describe_task(task, contract)
        self.contract_files = recorded_files(contract, filters)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the robot with `world_seed`."""
        return self.stepper.reset(world_seed=self.world_seed, options=options, seeded=seed is not None)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ANN401, ARG002
        """Finish the step that the stepper began with this action."""
        done = self.stepper.finish()
        return copy_observation(done.observation), done.reward, done.terminated, done.truncated, dict(done.info)

    def close(self) -> None:
        """Brake, and detach from the world."""
        self.stepper.close()


class EmbodiedParallelEnv(ParallelEnv[str, Observation, Any]):  # type: ignore[misc] # without pettingzoo it is Any
    """Several robots in one world, each with its own contract, gate, ledger, task and info.

    A robot whose episode has ended is no longer an agent, but stays in the world: it brakes to rest within its limits,
    and the others can collide with it.

    Attributes:
        team: the robots and their world.
        agents: robots whose episode is running, in the order of the team.
        possible_agents: all robots.
        backend_name: name of the backend.
        clock_name: name of the clock under the ledgers.
    """

    def __init__(self, contract: str | Path | Team, **options: Unpack[TeamOptions]) -> None:
        """Create the environment of `parallel_env`, which starts nothing before the first `reset`."""
        self._arguments: dict[str, Any] = {**options}
        for name in _UNSUPPORTED.keys() & options.keys():
            raise UsageError(f"unsupported option of parallel_env: {name} ({_UNSUPPORTED[name]})")
        own, backend_options = split_options(options, TeamOptions.__optional_keys__, caller="parallel_env")
        backend, clock, host_timing, record = own["backend"], own["clock"], own["host_timing"], options.get("record")
        shown = {
            "evaluator_info": checked_flag("evaluator_info", own["evaluator_info"]),
            "host_timing": host_timing is not None and checked_flag("host_timing", host_timing),
        }
        self._folder = None if record is None else checked_path("record", record)
        self.team = load_team(contract)
        self.backend_name = backend
        self.clock_name = clock if isinstance(clock, str) else "steady" if clock is None else type(clock).__name__
        the_clock = make_clock(clock)
        world = make_backend(backend, self.team.world, clock=the_clock, **backend_options)
        if world.capabilities.free_running:
            raise UsageError(f"unsupported backend for parallel_env: {backend!r} (expected one in lockstep)")
        self.render_mode = own["render_mode"]
        self._rendering = Rendering(backend, world, self.team.world, self.render_mode)
        self.metadata = {"name": self.team.name, **self._rendering.metadata, "is_parallelizable": True}
        self._shared = SharedBackend(self.team, world, clock=the_clock)
        names = backend, self.clock_name
        self._agent_envs = {
            name: AgentEnv(AgentBackend(self._shared, self.team, name), the_clock, names, **shown)
            for name in self.team.agents
        }
        self._envs: Mapping[str, gymnasium.Env[Any, Any]] = self._agent_envs  # with `record`, in their recorders
        if self._folder is not None:
            from embodied_env.record import RecordTransitions

            self._envs = {name: RecordTransitions(env, self._folder / name) for name, env in self._agent_envs.items()}
        self.possible_agents = list(self.team.agents)
        self.agents: list[str] = []
        self._rng: np.random.Generator | None = None
        self._running, self._closed = False, False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the constructor's arguments, so that a copy is not opened."""
        return partial(type(self), **{**self._arguments, "contract": self.team}), ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.team.name} on {self.backend_name}, {len(self.possible_agents)} robots>"

    # ------------------------------------------------------------------------------------------------ PettingZoo

    def observation_space(self, agent: str) -> gymnasium.Space[Observation]:
        """Return the observation space of `agent`, always the same object."""
        return self._of(agent).observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the action space of `agent`, always the same object."""
        space: gymnasium.Space[Any] = self._of(agent).action_space
        return space

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Start an episode of every robot, in a world that is reset once.

        Args:
            seed: seeds the generator of the world seeds of this and every later reset, as in `EmbodiedEnv`.
            options: reset options by robot name, and those of the world under ``world``. Other keys are ignored with a
                warning.

        Raises as `EmbodiedEnv.reset` does.
        """
        check_open(self._closed, "reset")
        check_seed(seed)
        own, whole = self._options(options)
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        world_seed = draw_world_seed(self._rng)
        self.agents, self._running = [], False
        self._shared.request_reset(world_seed, whole)
        observations: dict[str, Observation] = {}
        infos: dict[str, dict[str, Any]] = {}
        for name, env in self._envs.items():
            self._agent_envs[name].world_seed = world_seed
            observations[name], infos[name] = env.reset(seed=seed, options=own[name])
        self.agents, self._running = list(self.possible_agents), True
        self._rendering.begin(self._renderer)
        return observations, infos

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take one step of every agent.

        All commands are sent, the world moves once, and all observations are read. Any action is accepted, as in
        `EmbodiedEnv`: a malformed one makes its robot brake. An agent whose episode ends with this step is in the
        result, but no longer in `agents`.

        Raises:
            ResetNeededError: when there is no agent, or after a step that raised.
            UsageError: when the keys of `actions` are not the agents. Nothing is published.
            ClosedError: after `close`.
        """
        check_open(self._closed, "step")
        acting = self.agents
        if not self._running or not acting:
            raise ResetNeededError("step() outside an episode; call reset() first (nothing was published)")
        if actions.keys() != set(acting):
            raise UsageError(f"wrong keys of the actions: {list(actions)} (expected {acting})")
        self.agents, self._running = [], False  # an error during a step ends all episodes
        for name, env in self._agent_envs.items():
            if name in acting:
                env.stepper.begin(actions[name])
            else:
                env.stepper.begin_idle()
        done = {name: self._envs[name].step(actions[name]) for name in acting}
        for name, env in self._agent_envs.items():
            if name not in acting:
                env.stepper.finish_idle()
        self.agents = [name for name in acting if not (done[name][2] or done[name][3])]
        self._running = True
        self._rendering.update(self._renderer)
        return tuple({name: result[part] for name, result in done.items()} for part in range(5))  # type: ignore[return-value]

    def render(self) -> Any:  # noqa: ANN401 - PettingZoo's: an array, a list or None
        """Return an image of the world, the list of images, or None, as `EmbodiedEnv.render` does."""
        return self._rendering.render(self._renderer)

    def close(self) -> None:
        """Brake, then free everything. Idempotent."""
        self._closed = True
        self.agents = []
        try:
            for env in reversed(list(self._envs.values())):  # the first one made the folder of the records
                env.close()
        finally:
            self._shared.close()

    # ------------------------------------------------------------------------------------------------ state

    @property
    def world_reset(self) -> ResetReport | None:
        """The report of the last reset of the world with all drawn values, for evaluators only."""
        return self._shared.last_reset

    def contract(self, agent: str) -> Contract:
        """Return the contract of `agent`."""
        return self._of(agent).contract

    def last_transition(self, agent: str) -> Transition | None:
        """Return the last step of `agent` in full, or None before its first."""
        return self._of(agent).last_transition

    def run_directory(self, agent: str) -> Path | None:
        """Return the run directory of `agent`, or None without recording."""
        self._of(agent)
        return None if self._folder is None else cast("RecordTransitions", self._envs[agent]).path

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step for every agent.

        An example is ``mark("policy")`` right after inference.
        """
        for agent in self.agents:
            self._agent_envs[agent].mark(name)

    def annotate(self, agent: str, name: str, values: Mapping[str, Any]) -> None:
        """Attach an account to the step of `agent` that follows, like `EmbodiedEnv.annotate`."""
        self._of(agent).annotate(name, values)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process of the world."""
        return self._shared.backend.processes()

    # ---------------------------------------------------------------------------------------------- internal

    def _of(self, agent: str) -> AgentEnv:
        if agent not in self._agent_envs:
            raise UsageError(f"unknown agent {one_of(agent, self._agent_envs)}")
        return self._agent_envs[agent]

    def _options(
        self, options: Mapping[str, Any] | None
    ) -> tuple[dict[str, dict[str, Any] | None], dict[str, NDArray[np.float64]]]:
        """Return the options of each robot, and all of them checked by their world names."""
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"invalid options: {options!r} (expected a mapping by robot, or None)")
        given = dict(options or {})
        own = {name: given.pop(name, None) for name in self._agent_envs}
        whole = {
            name_in_world(agent, name): value
            for agent, env in self._agent_envs.items()
            for name, value in env.stepper.check_reset(own[agent]).items()
        }
        of_world = given.pop(WORLD, None) or {}
        if unknown := [name for name in of_world if name not in self.team.options]:
            raise UsageError(f"unknown reset option of the world: {one_of(unknown[0], self.team.options)}")
        whole |= checked_options(self.team.world, of_world)
        if given:  # PettingZoo's own test passes other keys
            keys = ", ".join((*self._agent_envs, WORLD))
            gymnasium.logger.warn(f"ignored reset options: {', '.join(map(repr, given))} (expected one of: {keys})")
        return own, whole

    def _renderer(self) -> Renderable:
        return next(iter(self._agent_envs.values())).stepper.renderer()


def parallel_env(contract: str | Path | Team, **options: Unpack[TeamOptions]) -> EmbodiedParallelEnv:
    """Make an environment of several robots in one world.

    Its sequential view is ``pettingzoo.utils.parallel_to_aec(parallel_env(...))``.

    Args:
        contract: name of a shipped team (``two_carts``, ``two_arms``), path to a team's YAML file, or a Team.
        backend: "mujoco", "mujoco_ros", or any other lockstep backend.
        render_mode: "rgb_array", "rgb_array_list" or "human", where the backend offers it.
        clock: "steady" (default), "virtual", or a Clock, for all robots.
        host_timing: return durations of the host in ``info``, as for `make`.
        evaluator_info: show sensors with ``visibility: evaluator`` in ``info``.
        record: a folder, which gets a folder with a run directory for each robot.
        spawn: start the simulator; False: attach to a running one.
        namespace: ROS namespace of the world.
        **options: these and options of the backend.

    Raises as `make` does, with UsageError for an option that robots cannot share.
    """
    return EmbodiedParallelEnv(contract, **options)
