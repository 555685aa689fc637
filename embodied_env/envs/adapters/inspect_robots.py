"""An environment as an embodiment of inspect-robots: its policies, tasks and logs; our contract, gate and account.

inspect-robots has one vector of actions, with a meaning that is the same for all of it, arrays of state and pictures by
name, and a trial that a fault ends for good. `docs/evaluators.md` says what becomes what.
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
from embodied_env.envs.embodied_env import EmbodiedEnv, make
from embodied_env.errors import MissingDependencyError, UsageError

try:
    import inspect_robots
    from inspect_robots.approver import GuardrailContribution
    from inspect_robots.embodiment import PRIVILEGED_SUCCESS, RESETTABLE, SEEDABLE, SELF_PACED
    from inspect_robots.errors import EmbodimentFault, SafetyAbort
except ImportError as error:
    raise MissingDependencyError(
        f"inspect-robots ({error})",
        needed_for="embodied_env.envs.adapters.inspect_robots",
        remedy='pip install "embodied_env[inspect]"',
    ) from None

OPTIONS = "reset_options"
"""The one kind of `Target` that an environment realizes: its ``spec`` are values for the contract's reset options."""

RESET = "reset"
"""The one `Scene.setup`: what every reset does. None is the same."""

_MODES = {"position": "joint_pos", "position_delta": "joint_delta", "velocity": "joint_vel", "twist": "joint_vel"}
_UNITS = {"position": "{}", "position_delta": "{}", "velocity": "{}/s", "twist": "{}/s"}
_CANONICAL = {"position": "joint_pos", "velocity": "joint_vel"}
_IMAGE = 3  # dimensions: height, width, channels
_S_PER_NS = 1e-9


class EmbodiedEmbodiment:
    """An environment behind the interface `inspect_robots.Embodiment`.

    Actions are in SI units, flat over all joints in contract order; what the contract calls normalized is not. Every
    one goes through the contract's gate, whatever an approver has let pass.

    Attributes:
        info: what is declared: spaces, rate, capabilities, and the contract's fingerprint as the revision.
        env: the environment, for its account (`last_transition`).
    """

    def __init__(
        self,
        contract: str | Path | Contract = "arm_reach",
        **options: Any,  # noqa: ANN401 - make checks them
    ) -> None:
        """Make the environment; nothing is started before the first `reset`.

        Args:
            contract: as for `embodied_env.make`.
            **options: as for `embodied_env.make`: `backend`, `record`, ...

        Raises:
            UsageError: for actuators that are not all commanded alike: one vector of actions has one meaning.
        """
        self._gym = make(contract, **options)
        embodied = self._gym.unwrapped
        assert isinstance(embodied, EmbodiedEnv)  # noqa: S101 - for the type checker
        self.env: EmbodiedEnv = embodied
        self._layout = ActionLayout(embodied.contract)
        pictures = [layout for layout in _seen_fields(embodied.contract) if _is_image(layout)]
        self._cameras = {_camera(layout): layout for layout in pictures}
        self._state = _state_names(embodied, self._layout.joints)
        self._instruction: str | None = None
        self._solved: bool | None = None  # at the reset; None: not judged
        self.info = self._declared()

    def reset(self, scene: inspect_robots.Scene, *, seed: int | None = None) -> inspect_robots.Observation:
        """Start an episode from the scene's target, where it gives one, else from what `seed` draws.

        Raises:
            UsageError: for a scene that this environment cannot realize.
        """
        if scene.setup not in (None, RESET):
            raise UsageError(f"scene {scene.id!r} needs setup {scene.setup!r}; allowed: None or {RESET!r}")
        if scene.target is not None and scene.target.kind != OPTIONS:
            raise UsageError(f"scene {scene.id!r} has a target of kind {scene.target.kind!r}; allowed: {OPTIONS!r}")
        options = None if scene.target is None else dict(scene.target.spec)
        observation, info = self._gym.reset(seed=seed, options=options)
        self._instruction = scene.instruction
        self._solved = info["reset"]["solved"] if info["reset"]["judged"] else None
        return self._observation(observation, info)

    def step(self, action: inspect_robots.Action) -> inspect_robots.StepResult:
        """Take one step of one control period.

        Raises:
            SafetyAbort: after an ESTOP: the evaluation halts, and a person has to clear it.
            EmbodimentFault: when the world is lost: the trial is no evidence, and the evaluation halts.
        """
        observation, reward, terminated, truncated, info = self._gym.step(self._ours(action.data))
        reason = info["end_reason"]
        if info["safety"]["estop"]:
            raise SafetyAbort(f"{reason or 'estop'}: cleared by a person only, see EmbodiedEnv.clear_estop")
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
        """Contribute nothing: the gate is behind `step`, where nobody can leave it out."""
        return GuardrailContribution()

    def close(self) -> None:
        """Brake, then free everything. Idempotent."""
        self._gym.close()

    def _ours(self, data: NDArray[Any]) -> Any:  # noqa: ANN401 - of the action space, or what the gate refuses
        """Map SI units to an action of the contract. What has another form goes to the gate as it is: it brakes."""
        if np.shape(data) != (self._layout.size,):
            return data
        return self._layout.as_action(self._layout.scale.from_si(np.asarray(data, np.float64)))

    def _observation(self, observation: Mapping[str, NDArray[Any]], info: dict[str, Any]) -> inspect_robots.Observation:
        stamps_s = {name: account["stamp_ns"] * _S_PER_NS for name, account in info["sensors"].items()}
        seen = {layout.sensor for layout in self._cameras.values()}
        others = [stamp_s for name, stamp_s in stamps_s.items() if name not in seen]
        return inspect_robots.Observation(
            images={name: observation[layout.key] for name, layout in self._cameras.items()},
            state={theirs: _floating(observation[ours]) for ours, theirs in self._state.items()},
            instruction=self._instruction,
            image_times={name: stamps_s[layout.sensor] for name, layout in self._cameras.items()},
            state_time=min(others, default=0.0),
            extra={"embodied_env": info},
        )

    def _declared(self) -> inspect_robots.EmbodimentInfo:
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
            docs=_notes(contract),
            environment_id=f"{contract.name} v{contract.version} on {env.backend_name}",
            environment_revision=contract.fingerprint,
        )

    def _observation_space(self) -> inspect_robots.ObservationSpace:
        """Declare cameras and state. Their guardrails take the one state that is shaped like an action for its place.

        So other state of that shape is handed out, but not declared, where there is a ``joint_pos``.
        """
        boxes = _boxes(self.env)
        fields = []
        for ours, theirs in self._state.items():
            shape = boxes[ours].shape or ()
            is_rival = shape == (self._layout.size,) and theirs != "joint_pos" and "joint_pos" in self._state.values()
            if not is_rival:
                unit = _unit(self.env.contract, ours)
                fields.append(inspect_robots.StateField(key=theirs, shape=shape, unit=unit))
        cameras = tuple(
            inspect_robots.CameraSpec(name, *(int(size) for size in layout.shape))
            for name, layout in self._cameras.items()
        )
        return inspect_robots.ObservationSpace(cameras=cameras, state=inspect_robots.StateSpec(tuple(fields)))


def _action_box(contract: Contract, layout: ActionLayout) -> inspect_robots.Box:
    """Declare the actions in SI units, with what they mean, and the way that a joint goes in a period at its limit."""
    commands = {actuator.command for actuator in contract.actuators.values()}
    modes = {_MODES[command] for command in commands}
    if len(modes) > 1:
        raise UsageError(f"{contract.name} is commanded by {', '.join(sorted(commands))}; allowed: one kind of command")
    (mode,) = modes
    steps = tuple((layout.limits.velocity * contract.control_period_s).tolist()) if mode == "joint_pos" else None
    meaning = inspect_robots.ActionSemantics(control_mode=mode, dim_labels=layout.joints, max_step=steps)
    low, high = layout.scale.si_low.copy(), layout.scale.si_high.copy()
    return inspect_robots.Box(shape=(layout.size,), low=low, high=high, semantics=meaning)


def _notes(contract: Contract) -> str:
    """Return what a policy that reads text should know of the actions."""
    lines = [
        f"- {joint}: {actuator.command}, {_UNITS[actuator.command].format(limits.unit)}"
        for actuator in contract.actuators.values()
        for joint, limits in actuator.joints.items()
    ]
    period = f"Each action acts for one control period of {contract.control_period_s:g} s"
    return "\n".join([f"{contract.name}. {period}; a safety gate limits it.", *lines])


def _is_image(layout: FieldLayout) -> bool:
    return len(layout.shape) == _IMAGE and layout.dtype == np.uint8


def _camera(layout: FieldLayout) -> str:
    """Return the name of a camera: its sensor's."""
    return layout.sensor if layout.field == "image" else layout.key


def _seen_fields(contract: Contract) -> list[FieldLayout]:
    """Return the fields of all sensors that the agent sees."""
    agents = {name: sensor for name, sensor in contract.sensors.items() if sensor.visibility == "agent"}
    return [layout for name, sensor in agents.items() for layout in field_layouts(name, sensor)]


def _state_names(env: EmbodiedEnv, joints: tuple[str, ...]) -> dict[str, str]:
    """Return what each key of the observation but pictures is called there: that of the commanded joints as usual."""
    found: dict[str, str] = {}
    pictures = set()
    for layout in _seen_fields(env.contract):
        if _is_image(layout):
            pictures.add(layout.key)
            continue
        of_joints = env.contract.sensors[layout.sensor].fields[layout.field].joints == joints
        usual = _CANONICAL.get(layout.field, layout.key) if of_joints else layout.key
        found[layout.key] = layout.key if usual in found.values() else usual  # a second sensor of them keeps its own
    rest = [key for key in _boxes(env) if key not in found and key not in pictures]
    return found | {key: key for key in rest}


def _boxes(env: EmbodiedEnv) -> Mapping[str, gymnasium.Space[Any]]:
    """Return the spaces of the observation by key."""
    return cast("gymnasium.spaces.Dict", env.observation_space).spaces


def _unit(contract: Contract, key: str) -> str:
    """Return the unit of a key of the observation; masks, applied actions and the time that remains have none."""
    units = {f"{name}_{field}": spec.unit for name, of in contract.sensors.items() for field, spec in of.fields.items()}
    unit = units.get(key, "")
    return unit if isinstance(unit, str) else ", ".join(unit)


def _floating(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype.kind == "f" else array.astype(np.float64)
