"""The PettingZoo parallel environment of several robots in one world, and `parallel_env`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.backends.registry import make_backend
from embodied_env.contract import Contract
from embodied_env.contract.reset_options import checked_options
from embodied_env.contract.team import WORLD, Team, load_team, name_in_world
from embodied_env.core.arguments import checked_flag, checked_path
from embodied_env.core.clock import Clock, make_clock
from embodied_env.core.types import ResetReport, Snapshot, Transition
from embodied_env.envs.filters_from_contract import make_command_filters, recorded_files
from embodied_env.envs.info import copy_step_result
from embodied_env.envs.shared_backend import SharedBackend, SharedClock
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.world_seed import draw_world_seed
from embodied_env.errors import ClosedError, MissingDependencyError, ResetNeededError, UsageError
from embodied_env.tasks import describe_task, load_task

if TYPE_CHECKING:
    from embodied_env.record import RecordTransitions

try:
    from pettingzoo import ParallelEnv
except ImportError:
    raise MissingDependencyError(
        "pettingzoo", needed_for="several robots in one world", remedy='pip install "embodied_env[multi]"'
    ) from None

Observation = dict[str, NDArray[Any]]

_REFUSED = {
    "pacing": "robots that share a world wait for each other, so it is lockstep",
    "delay_profile": "delays are those of one robot's world",
    "delays": "delays are those of one robot's world",
    "record_messages": "the messages of a shared world are nobody's",
}


class AgentEnv(gymnasium.Env[Observation, Any]):
    """One robot of a team, as a recorder sees it: between `begin` and `step` the others begin, too.

    Attributes:
        contract: the contract of this robot.
        stepper: steps it.
    """

    pacing = "lockstep"

    def __init__(self, contract: Contract, stepper: Stepper, *, backend_name: str, clock_name: str) -> None:
        """Sit on `stepper`."""
        self.contract, self.stepper = contract, stepper
        self.backend_name, self.clock_name = backend_name, clock_name
        self.observation_space = cast("gymnasium.Space[Observation]", deepcopy(contract.observation_space))
        self.action_space = deepcopy(contract.action_space)
        self.task_description: dict[str, Any] = {}
        self.contract_files: Mapping[str, bytes] = {}
        self.world_seed = 0

    @property
    def capabilities(self) -> Capabilities:
        """What the world can do."""
        return self.stepper.capabilities

    @property
    def last_transition(self) -> Transition | None:
        """The full account of the last step."""
        return self.stepper.last_transition

    @property
    def last_reset(self) -> Snapshot | None:
        """What the last reset read."""
        return self.stepper.last_reset

    @property
    def _on_waiting(self) -> Callable[[], None] | None:
        """The recorder's hook: called in each step while the world moves."""
        return self.stepper.on_waiting

    @_on_waiting.setter
    def _on_waiting(self, call: Callable[[], None] | None) -> None:
        self.stepper.on_waiting = call

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step."""
        self.stepper.mark(name)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process of the world."""
        return self.stepper.processes()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the robot by `world_seed`."""
        return self.stepper.reset(world_seed=self.world_seed, options=options, seeded=seed is not None)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ANN401, ARG002
        """Finish the step that the stepper has begun with this action."""
        return copy_step_result(self.stepper.finish())

    def close(self) -> None:
        """Brake, and leave the world."""
        self.stepper.close()


class EmbodiedParallelEnv(ParallelEnv[str, Observation, Any]):  # type: ignore[misc] # without pettingzoo it is Any
    """Several robots in one world. Each has its own contract, gate, ledger, task and info.

    A robot whose episode has ended is no agent any more, and stays in the world: it brakes to rest within its limits,
    and the others can run into it.

    Attributes:
        team: the robots and their world.
        agents: whose episode goes on, in the order of the team.
        possible_agents: all of them.
        backend_name: which world is behind them.
        clock_name: which clock is under the ledgers.
    """

    def __init__(  # noqa: PLR0913 - the public options
        self,
        contract: str | Path | Team,
        *,
        backend: str = "mujoco",
        render_mode: str | None = None,
        clock: str | Clock | None = None,
        evaluator_info: bool = False,
        record: str | Path | None = None,
        spawn: bool = True,
        namespace: str | None = None,
        **backend_options: Any,  # noqa: ANN401 - the backend checks its options
    ) -> None:
        """See `parallel_env`; nothing is started before the first `reset`."""
        evaluator_info = checked_flag("evaluator_info", evaluator_info)
        self._folder = None if record is None else checked_path("record", record)
        for name in _REFUSED.keys() & backend_options.keys():
            raise UsageError(f"{name}={backend_options[name]!r} is not available with parallel_env: {_REFUSED[name]}")
        if not checked_flag("spawn", spawn):
            backend_options["spawn"] = False
        if namespace is not None:
            backend_options["namespace"] = namespace
        self.team = load_team(contract)
        self.backend_name = backend
        self.clock_name = clock if isinstance(clock, str) else "steady" if clock is None else type(clock).__name__
        self.render_mode = render_mode
        the_clock = make_clock(clock)
        world = make_backend(backend, self.team.world, clock=the_clock, **backend_options)
        if world.capabilities.free_running:
            raise UsageError(f"the backend {backend!r} moves by itself; allowed: one that waits for all robots")
        render_modes = world.capabilities.render_modes
        if render_mode not in (None, *render_modes):
            offered = ", ".join(map(repr, (None, *render_modes)))
            raise UsageError(f"render_mode={render_mode!r} is not available with {backend} here; allowed: {offered}")
        self.metadata = {
            "name": self.team.name,
            "render_modes": list(render_modes),
            "render_fps": max(1, round(1 / self.team.world.control_period_s)),
            "is_parallelizable": True,
        }
        self._shared = SharedBackend(self.team, world, clock=the_clock)
        own_clock = SharedClock(the_clock)
        self._seats = {name: self._seat(name, own_clock, evaluator_info) for name in self.team.agents}
        self._faces = {name: _recorded(name, seat, self._folder) for name, seat in self._seats.items()}
        self.possible_agents = list(self.team.agents)
        self.agents: list[str] = []
        self._rng: np.random.Generator | None = None
        self._stands, self._closed = False, False

    def _seat(self, name: str, clock: Clock, evaluator_info: bool) -> AgentEnv:  # noqa: FBT001 - the user's option
        contract = self.team.agents[name]
        task, shapers = load_task(contract, trust=True), make_command_filters(contract)
        stepper = Stepper(
            contract, self._shared.view(name), task, clock=clock, evaluator_info=evaluator_info, shapers=shapers
        )
        seat = AgentEnv(contract, stepper, backend_name=self.backend_name, clock_name=self.clock_name)
        seat.task_description, seat.contract_files = describe_task(task, contract), recorded_files(contract, shapers)
        return seat

    # ------------------------------------------------------------------------------------------------ PettingZoo

    def observation_space(self, agent: str) -> gymnasium.Space[Observation]:
        """Return the space of what `agent` sees: always the same object."""
        return self._of(agent).observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the space of what `agent` does: always the same object."""
        return self._of(agent).action_space

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Start an episode of every robot, in a world that is reset once.

        Args:
            seed: from it the world's seed of this and of every later reset is drawn, as in `EmbodiedEnv`.
            options: for each robot by name values for its reset options, and under ``world`` those of the world. A key
                that is neither is warned of, and means nothing.

        Raises:
            UsageError: for an unknown option of a robot or the world, or a value outside its bounds.
            BackendNotReadyError: when the world does not come up.
            ClosedError: after `close`.
        """
        self._check_open("reset")
        own, whole = self._options(options)
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        world_seed = draw_world_seed(self._rng)
        self.agents, self._stands = [], False
        self._shared.request_reset(world_seed, whole)
        observations: dict[str, Observation] = {}
        infos: dict[str, dict[str, Any]] = {}
        for name, face in self._faces.items():
            self._seats[name].world_seed = world_seed
            observations[name], infos[name] = face.reset(seed=seed, options=own[name])
        self.agents, self._stands = list(self.possible_agents), True
        self._show()
        return observations, infos

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take one step of every agent: all act, the world moves once, all see.

        Any action is accepted, as in `EmbodiedEnv`: a malformed one makes its own robot brake. Whoever's episode has
        ended by this step is in the answer once more, and in `agents` no more.

        Raises:
            ResetNeededError: when there is no agent, or after a step that raised.
            UsageError: when the keys of `actions` are not the agents. Nothing is published.
            ClosedError: after `close`.
        """
        self._check_step(actions)
        acting = self.agents
        self.agents, self._stands = [], False  # what is raised in the middle of a step ends every episode
        for name, seat in self._seats.items():
            if name in acting:
                seat.stepper.begin(actions[name])
            else:
                seat.stepper.begin_idle()
        done = {name: self._faces[name].step(actions[name]) for name in acting}
        for name, seat in self._seats.items():
            if name not in acting:
                seat.stepper.finish_idle()
        self.agents = [name for name in acting if not (done[name][2] or done[name][3])]
        self._stands = True
        self._show()
        observations, rewards, terminations, truncations, infos = (
            {name: answer[part] for name, answer in done.items()} for part in range(5)
        )
        return (  # type: ignore[return-value] # each part has its own type
            observations,
            rewards,
            terminations,
            truncations,
            infos,
        )

    def render(self) -> Any:  # noqa: ANN401 - PettingZoo's: an array, or None
        """Return a picture of the world, uint8 (height, width, 3), with render_mode "rgb_array".

        Raises:
            ResetNeededError: before the first reset.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(f"render() without a render_mode; allowed: {self.metadata['render_modes']}")
            return None
        return next(iter(self._seats.values())).stepper.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Brake, then free everything. Idempotent."""
        self._closed = True
        self.agents = []
        try:
            for face in self._faces.values():
                face.close()
        finally:
            self._shared.close()

    # --------------------------------------------------------------------------------------------- the account

    @property
    def world_reset(self) -> ResetReport | None:
        """What the last reset did to the world, everything that was drawn included; for evaluators, not for agents."""
        return self._shared.last_reset

    def contract(self, agent: str) -> Contract:
        """Return the contract of `agent`."""
        return self._of(agent).contract

    def last_transition(self, agent: str) -> Transition | None:
        """Return the full account of the last step of `agent`, or None before its first."""
        return self._of(agent).last_transition

    def run_directory(self, agent: str) -> Path | None:
        """Return where the steps of `agent` are recorded; None: they are not."""
        self._of(agent)
        return None if self._folder is None else cast("RecordTransitions", self._faces[agent]).path

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step, of every agent: ``mark("policy")`` right after inference."""
        for agent in self.agents:
            self._seats[agent].mark(name)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that was started for the world."""
        return self._shared.backend.processes()

    # ------------------------------------------------------------------------------------------------- checks

    def _of(self, agent: str) -> AgentEnv:
        if agent not in self._seats:
            raise UsageError(f"agent={agent!r} is not known; allowed: {', '.join(self._seats)}")
        return self._seats[agent]

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(f"{call}() after close(): the environment is closed; make a new one")

    def _check_step(self, actions: Mapping[str, Any]) -> None:
        self._check_open("step")
        if not self._stands or not self.agents:
            raise ResetNeededError("step() outside an episode: call reset() first; nothing was published")
        if actions.keys() != set(self.agents):
            missing = [name for name in self.agents if name not in actions]
            wrong = f"of {', '.join(missing)} is missing" if missing else f"is of {', '.join(map(str, actions))}"
            raise UsageError(f"an action {wrong}; allowed: one of each of {', '.join(self.agents)}")

    def _options(
        self, options: Mapping[str, Any] | None
    ) -> tuple[dict[str, dict[str, Any] | None], dict[str, NDArray[np.float64]]]:
        """Return the options of each robot, and all of them, checked, by their names in the world."""
        if options is not None and not isinstance(options, Mapping):
            raise UsageError(f"options={options!r} is not allowed; allowed: a mapping by robot, or None")
        given = dict(options or {})
        own = {name: given.pop(name, None) for name in self._seats}
        whole = {
            name_in_world(agent, name): value
            for agent, seat in self._seats.items()
            for name, value in seat.stepper.check_reset(own[agent]).items()
        }
        of_world = given.pop(WORLD, None) or {}
        if unknown := [name for name in of_world if name not in self.team.options]:
            allowed = ", ".join(self.team.options) or "none"
            raise UsageError(f"reset option {unknown[0]!r} of the world is not known; allowed: {allowed}")
        whole |= checked_options(self.team.world, of_world)
        if given:  # PettingZoo's own test gives such a one
            keys = ", ".join((*self._seats, WORLD))
            gymnasium.logger.warn(f"options of {', '.join(map(repr, given))} mean nothing here; allowed: {keys}")
        return own, whole

    def _show(self) -> None:
        if self.render_mode == "human":
            next(iter(self._seats.values())).stepper.show()


def parallel_env(contract: str | Path | Team, **options: Any) -> EmbodiedParallelEnv:  # noqa: ANN401 - checked there
    """Make an environment of several robots in one world.

    Its sequential view is ``pettingzoo.utils.parallel_to_aec(parallel_env(...))``.

    Args:
        contract: the name of a shipped team (``two_carts``, ``two_arms``), a path to a team's YAML file, or a Team.
        **options: `backend` ("mujoco", "mujoco_ros", or any other that waits), `clock` ("steady" or "virtual"),
            `render_mode`, `evaluator_info`, `record` (a folder, in which each robot gets a folder with a run
            directory), `spawn`, `namespace`, and the options of the backend.

    Raises:
        ContractError: when the team or one of its contracts is wrong.
        UsageError: for an unknown backend or option, or one that robots cannot share.
        MissingDependencyError: when an optional package is not installed.
    """
    return EmbodiedParallelEnv(contract, **options)


def _recorded(name: str, seat: AgentEnv, folder: Path | None) -> gymnasium.Env[Any, Any]:
    if folder is None:
        return seat
    from embodied_env.record import RecordTransitions  # noqa: PLC0415 - recording is optional

    return RecordTransitions(seat, folder / name)
