"""The part of an environment over one stepper that recorders and wrappers read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Self, cast

import gymnasium

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.core.types import Snapshot, Transition
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.stepper import Stepper
from embodied_env.timing.clock import Clock


class StepperEnv(gymnasium.Env[Observation, Any]):
    """An environment over one `Stepper` with what the recorder and wrappers read.

    `annotate`, `instruct`, `require` and `preview` raise ResetNeededError outside an episode, and ClosedError after
    `close`.

    Attributes:
        contract: the contract in force.
        action_space: a Box, or with several actuators a Dict of them.
        backend_name: name of the backend.
        clock_name: name of the clock under the ledger.
        host_timing: whether the agent's infos have the durations of the host.
        pacing: "lockstep" (the world waits for the agent) or "realtime".
        stepper: runs the steps; read its state by the methods of the environment.
        task_description: the task in the manifest (`embodied_env.tasks.describe_task`).
        contract_files: files of the contract that a replay needs, by name.
    """

    action_space: Any
    pacing = "lockstep"
    task_description: dict[str, Any]
    contract_files: Mapping[str, bytes]
    host_timing = True
    _is_recorded = False
    stepper: Stepper

    def __init__(self, contract: Contract, backend: str, clock: str | Clock | None) -> None:
        self.contract, self.backend_name = contract, backend
        self.clock_name = clock if isinstance(clock, str) else "steady" if clock is None else type(clock).__name__
        self.observation_space = cast("gymnasium.Space[Observation]", deepcopy(contract.observation_space))
        self.action_space = deepcopy(contract.action_space)  # environments seed their spaces independently

    def __repr__(self) -> str:
        known = f"{self.contract.name} v{self.contract.version} ({self.contract.fingerprint[:12]})"
        return f"<{type(self).__name__} {known} on {self.backend_name}, {self.pacing}, {self.stepper.state}>"

    def __str__(self) -> str:
        return repr(self)

    @property
    def unwrapped(self) -> Self:
        """This environment."""
        return self

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the backend."""
        return self.stepper.capabilities

    @property
    def last_transition(self) -> Transition | None:
        """The last step, without observers with the info that `step` returned, or None."""
        return self.stepper.last_transition

    @property
    def last_reset(self) -> Snapshot | None:
        """The snapshot of the last reset with its report, or None before the first."""
        return self.stepper.last_reset

    def keep_host_timing(self) -> None:
        """Return the durations of the host from now on, for a recorder that removes them by itself."""
        self._is_recorded = True
        self.stepper.transition_builder.host_timing = True

    def mark(self, name: str) -> None:
        """Stamp the end of a stage outside the step, as in ``mark("policy")`` after inference."""
        self.stepper.ledger.mark(name)

    def annotate(self, name: str, values: Mapping[str, Any]) -> None:
        """Attach an account, such as that of a chunk or a remote policy, to the step that follows.

        It is ``info["annotations"][name]`` of that step, recorded with its external inputs, and copied by a replay.
        Another one of the same name before that step replaces it. In the account ``chunk`` of a chunk that takes effect
        in that step, ``actions`` is the sequence of its actions: they are not in info but recorded as one array.

        Args:
            name: lower-case letters, digits and ``_``, a letter first.
            values: numbers, text, booleans, None, arrays, and lists and mappings of them; NaN becomes null.

        Raises:
            UsageError: for another name or a reserved one, other values, more than 16384 characters or 16 levels of
                JSON, or more than 32 names in a step.
        """
        self.stepper.inputs_for("annotate").annotate(name, values)

    def instruct(self, instruction: str) -> None:
        """Change the prompt of the episode from the next step on.

        The prompt is in ``info["instruction"]`` and in the record. The caller also passes it to its policy
        (`embodied_env.core.policy.InstructedPolicy`).

        Raises UsageError unless it is a text of 1 to 1,000 printable characters.
        """
        self.stepper.inputs_for("instruct").instruct(instruction)

    def require(self, sensors: Iterable[str]) -> None:
        """Require a valid reading of these sensors for each action until the next reset.

        The inputs of a policy are such sensors. They are required in addition to those of the contract, recorded with
        each step, and used by a replay.

        Raises UsageError for a sensor that the agent does not see.
        """
        self.stepper.inputs_for("require").require(sensors)

    def preview(self, actions: Iterable[Any]) -> None:
        """Set the actions of a chunk from the next step on, for a trajectory (`trajectory_steps`).

        Their first is the action of that step, as it reaches this environment: if a wrapper has changed it, the others
        are dropped, with a warning and ``info["annotations"]["trajectory"]["refused"]``. Without trajectories nothing
        happens.

        Raises UsageError if `actions` is not a sequence.
        """
        self.stepper.inputs_for("preview").preview(actions)

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that this environment has started."""
        return self.stepper.backend.processes()
