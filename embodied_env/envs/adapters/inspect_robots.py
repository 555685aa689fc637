"""Use an environment as an embodiment of inspect-robots, with its policies, tasks and logs.

inspect-robots has one action vector of one control mode, named state arrays and images, and evaluations that a fault
halts. `docs/howto/other_evaluators.md` has the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.registry import BACKENDS
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.codes import end_kind
from embodied_env.core.outcome_counts import counted_apart
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.registration import make
from embodied_env.errors import MissingDependencyError, UsageError

try:
    import inspect_robots
    from inspect_robots.approver import GuardrailContribution
    from inspect_robots.embodiment import PRIVILEGED_SUCCESS, RESETTABLE, SEEDABLE, SELF_PACED
    from inspect_robots.errors import EmbodimentFault, SafetyAbort
except ImportError as error:
    raise MissingDependencyError(
        f"inspect-robots ({error})", needed_for="embodied_env.envs.adapters.inspect_robots"
    ) from None

OPTIONS = "reset_options"
"""The only supported kind of `Target`: its ``spec`` has values for the contract's reset options."""

RESET = "reset"
"""The only supported `Scene.setup`: every reset performs it. None is the same."""

_MODES = {"position": "joint_pos", "position_delta": "joint_delta", "velocity": "joint_vel", "twist": "joint_vel"}
_CANONICAL = {"position": "joint_pos", "velocity": "joint_vel"}
_IMAGE = 3  # dimensions: height, width, channels
_S_PER_NS = 1e-9


class EmbodiedEmbodiment:
    """An environment with the interface `inspect_robots.Embodiment`.

    Actions are always in SI units, flat over all joints in contract order. Each one passes the gate of the contract
    after any approver.

    Attributes:
        info: spaces, rate, capabilities, and the contract's fingerprint as the revision.
        env: the environment, for its transitions (`last_transition`).
    """

    def __init__(
        self,
        contract: str | Path | Contract = "arm_reach",
        **options: Any,  # noqa: ANN401 - make checks them
    ) -> None:
        """Make the environment as `embodied_env.make` does; nothing is started before the first `reset`.

        Raises:
            UsageError: for actuators with different kinds of command, since an action vector has one control mode.
        """
        self._gym = make(contract, **options)
        embodied = self._gym.unwrapped
        assert isinstance(embodied, EmbodiedEnv)  # noqa: S101 - for the type checker
        self.env: EmbodiedEnv = embodied
        self._layout = ActionLayout(embodied.contract)
        self._spaces = cast("gymnasium.spaces.Dict", embodied.observation_space).spaces
        sensors = embodied.contract.sensors.items()
        visible = [
            each for name, sensor in sensors if sensor.visibility == "agent" for each in field_layouts(name, sensor)
        ]
        images = [each for each in visible if len(each.shape) == _IMAGE and each.dtype == np.uint8]
        self._cameras = {each.sensor if each.field == "image" else each.key: each for each in images}
        keys = self._spaces.keys() - {each.key for each in images}
        self._state = _state_names(
            embodied.contract, [each for each in visible if each.key in keys], self._layout.joints
        )
        self._state |= {key: key for key in self._spaces if key in keys and key not in self._state}
        self._instruction: str | None = None
        self._solved: bool | None = None  # at reset; None: not judged
        self.info = self._embodiment_info()

    def reset(self, scene: inspect_robots.Scene, *, seed: int | None = None) -> inspect_robots.Observation:
        """Start an episode at the target of the scene, or without one at the state drawn by `seed`.

        Raises:
            UsageError: for a setup or a kind of target that is not supported.
        """
        if scene.setup not in (None, RESET):
            raise UsageError(f"unsupported setup of scene {scene.id!r}: {scene.setup!r} (expected None or {RESET!r})")
        if scene.target is not None and scene.target.kind != OPTIONS:
            kind = scene.target.kind
            raise UsageError(f"unsupported target kind of scene {scene.id!r}: {kind!r} (expected {OPTIONS!r})")
        options = None if scene.target is None else dict(scene.target.spec)
        observation, info = self._gym.reset(seed=seed, options=options)
        self._instruction = scene.instruction
        self._solved = info["reset"]["solved"] if info["reset"]["judged"] else None
        return self._observation(observation, info)

    def step(self, action: inspect_robots.Action) -> inspect_robots.StepResult:
        """Take one step of one control period.

        Raises:
            SafetyAbort: after an ESTOP; the evaluation halts, and an operator must clear the ESTOP.
            EmbodimentFault: when the world is lost; the evaluation halts, and the trial is not evaluated.
        """
        data = action.data
        if np.shape(data) == (self._layout.size,):  # the gate brakes for any other shape
            data = self._layout.as_action(self._layout.scale.from_si(np.asarray(data, np.float64)))
        observation, reward, terminated, truncated, info = self._gym.step(data)
        reason = info["end_reason"]
        if info["safety"]["estop"]:
            raise SafetyAbort(f"{reason or 'estop'}; an operator must call EmbodiedEnv.clear_estop")
        if end_kind(reason) == "backend_lost":
            raise EmbodimentFault(reason)
        success = info["is_success"] and terminated
        apart = counted_apart(solved=self._solved, success=success, info=info, steps=info["step_index"])
        success = success and not apart
        return inspect_robots.StepResult(
            observation=self._observation(observation, info),
            reward=float(reward),
            terminated=terminated,
            termination_reason=((apart if info["is_success"] else "") or reason) or None,
            truncated=truncated,
            info={**info, "success": success},
        )

    def contribute_guardrails(self, action_space: inspect_robots.Box) -> GuardrailContribution:  # noqa: ARG002 - theirs
        """Contribute nothing, since the gate in `step` cannot be skipped."""
        return GuardrailContribution()

    def close(self) -> None:
        """Brake, then free everything. Idempotent."""
        self._gym.close()

    def _observation(self, observation: Mapping[str, NDArray[Any]], info: dict[str, Any]) -> inspect_robots.Observation:
        stamps_s = {name: reading["stamp_ns"] * _S_PER_NS for name, reading in info["sensors"].items()}
        cameras = {layout.sensor for layout in self._cameras.values()}
        return inspect_robots.Observation(
            images={
                name: observation[layout.key] if layout.history is None else observation[layout.key][-1]
                for name, layout in self._cameras.items()
            },
            state={
                theirs: values if (values := observation[ours]).dtype.kind == "f" else values.astype(np.float64)
                for ours, theirs in self._state.items()
            },
            instruction=self._instruction,
            image_times={name: stamps_s[layout.sensor] for name, layout in self._cameras.items()},
            state_time=min((stamp_s for name, stamp_s in stamps_s.items() if name not in cameras), default=0.0),
            extra={"embodied_env": info},
        )

    def _embodiment_info(self) -> inspect_robots.EmbodimentInfo:
        env, contract = self.env, self.env.contract
        capabilities = {RESETTABLE, PRIVILEGED_SUCCESS}
        if env.capabilities.seedable:
            capabilities.add(SEEDABLE)
        if env.pacing == "realtime":
            capabilities.add(SELF_PACED)
        return inspect_robots.EmbodimentInfo(
            name="embodied_env",
            action_space=_action_box(contract, self._layout),
            observation_space=self._observation_space(),
            control_hz=1.0 / contract.control_period_s,
            is_simulated=env.capabilities.exact_step or (env.backend_name in BACKENDS and env.backend_name != "real"),
            capabilities=frozenset(capabilities),
            supported_setups=frozenset({RESET}),
            supported_target_kinds=frozenset({OPTIONS}),
            docs=_describe_actions(contract),
            environment_id=f"{contract.name} v{contract.version} on {env.backend_name}",
            environment_revision=contract.fingerprint,
        )

    def _observation_space(self) -> inspect_robots.ObservationSpace:
        """Declare cameras and state.

        The guardrails of inspect-robots mistake any state with the shape of an action for the joint positions. With a
        ``joint_pos``, other state of that shape is therefore returned but not declared.
        """
        fields = []
        for ours, theirs in self._state.items():
            shape = self._spaces[ours].shape or ()
            ambiguous = shape == (self._layout.size,) and theirs != "joint_pos" and "joint_pos" in self._state.values()
            if not ambiguous:
                unit = _unit(self.env.contract, ours)
                fields.append(inspect_robots.StateField(key=theirs, shape=shape, unit=unit))
        cameras = tuple(
            inspect_robots.CameraSpec(name, *(int(size) for size in layout.shape))
            for name, layout in self._cameras.items()
        )
        return inspect_robots.ObservationSpace(cameras=cameras, state=inspect_robots.StateSpec(tuple(fields)))


def _action_box(contract: Contract, layout: ActionLayout) -> inspect_robots.Box:
    """Declare the actions in SI units, with their control mode and largest change of position in a control period."""
    commands = {actuator.command for actuator in contract.actuators.values()}
    modes = {_MODES[command] for command in commands}
    if len(modes) > 1:
        raise UsageError(f"mixed commands in {contract.name}: {', '.join(sorted(commands))} (expected one kind)")
    (mode,) = modes
    steps = tuple((layout.limits.fastest * contract.control_period_s).tolist()) if mode == "joint_pos" else None
    meaning = inspect_robots.ActionSemantics(control_mode=mode, dim_labels=layout.joints, max_step=steps)
    low, high = layout.scale.si_low.copy(), layout.scale.si_high.copy()
    return inspect_robots.Box(shape=(layout.size,), low=low, high=high, semantics=meaning)


def _describe_actions(contract: Contract) -> str:
    """Return a description of the actions, for policies that read text."""
    lines = [
        f"- {joint}: {actuator.command}, {limits.unit}{'/s' if actuator.command in ('velocity', 'twist') else ''}"
        for actuator in contract.actuators.values()
        for joint, limits in actuator.joints.items()
    ]
    period = f"Each action acts for one control period of {contract.control_period_s:g} s"
    return "\n".join([f"{contract.name}. {period}; a safety gate limits it.", *lines])


def _state_names(contract: Contract, fields: list[FieldLayout], joints: tuple[str, ...]) -> dict[str, str]:
    """Return the name of each of these keys of the observation; commanded joints have the canonical names."""
    names: dict[str, str] = {}
    for layout in fields:
        of_joints = layout.history is None and contract.sensors[layout.sensor].fields[layout.field].joints == joints
        canonical = _CANONICAL.get(layout.field, layout.key) if of_joints else layout.key
        names[layout.key] = layout.key if canonical in names.values() else canonical  # a second sensor keeps its key
    return names


def _unit(contract: Contract, key: str) -> str:
    """Return the unit of a key of the observation, or "" for masks, applied actions and remaining time."""
    units = {f"{name}_{field}": spec.unit for name, of in contract.sensors.items() for field, spec in of.fields.items()}
    unit = units.get(key, "")
    return unit if isinstance(unit, str) else ", ".join(unit)
