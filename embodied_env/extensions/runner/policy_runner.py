"""Keep a policy and a robot ready, and run goals in a thread, without a ROS interface."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from embodied_env.backends.backend import find_estop_source
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_schema import INSTRUCTION
from embodied_env.contract.runtime_values import check_instruction
from embodied_env.core.contract_blocks import check_blocks, load_block
from embodied_env.core.policy import NoAction, Observation, draw_from, find_start, policy_errors, policy_seed
from embodied_env.core.types import Finding, Transition
from embodied_env.envs.action_chunks import attach_action
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.stepper_state import latched_estop
from embodied_env.errors import (
    BackendError,
    BackendNotReadyError,
    ClosedError,
    EmbodiedEnvError,
    PolicyError,
    RecordError,
    TaskError,
    UsageError,
)
from embodied_env.extensions.runner.controller_switch import (
    SWITCH_CONTROLLER,
    NotRequestedError,
    RunnerControllers,
    switch_controllers,
)
from embodied_env.extensions.runner.policy_goal import GoalResult, PolicyGoal, check_goal
from embodied_env.messages.message_types import message_class
from embodied_env.policies.chunk_execution import ChunkRunner, longest_wait_s
from embodied_env.policies.policy_loader import load_policy, policy_accepts
from embodied_env.policies.policy_model import find_implausible
from embodied_env.processes.child_process import STOP_GRACE_S
from embodied_env.record import RecordTransitions
from embodied_env.ros.robot.preflight import survey
from embodied_env.ros.robot.robot_options import RobotOptions
from embodied_env.ros.robot.robot_profile import RealProfile, load_real_profile
from embodied_env.ros.transport.checklist import Check, raise_unless_passed
from embodied_env.safety.findings import safety_input_findings
from embodied_env.safety.relay.relay_protocol import stopping_time_s
from embodied_env.timing.clock import NS_PER_S, SteadyClock

_POLL_NS = NS_PER_S // 50
_MOST_CHECKED = 10_000  # actions of the first chunk
_TIME_OVER = "the time of the goal is over"
_HANGS = "the policy does not return"


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """The contract and the policy of a runner, and the options of its robot (`RobotOptions`)."""

    contract: str
    policy: str
    policy_file: str | None = None
    trust_policy: bool = False
    chunks: str = "wait"  # one of `CHUNK_MODES`
    seed: int = 0
    out: str = "runs"  # parent of the run directories, one for each goal
    robot: Mapping[str, Any]


class PolicyRunner:
    """Runs goals on a robot, each recorded, with a policy that stays loaded.

    `configure` and `cleanup`, `activate` and `deactivate` are pairs, called in this order by one thread; so are `start`
    and `stop`. A goal runs in a thread of its own, a daemon: a policy that hangs lets the program end.
    """

    contract: Contract  # loaded by `configure`
    _profile: RealProfile

    def __init__(self, options: RunnerOptions) -> None:
        """Load nothing."""
        self._options = options
        self._clock = SteadyClock()
        self._env: EmbodiedEnv | None = None
        self._policy: ChunkRunner | None = None
        self._controllers: RunnerControllers | None = None
        self._switched: RunnerControllers | None = None  # until they are switched back
        self._thread = self._hanging = threading.Thread()  # not started
        self._hanging_policy: ChunkRunner | None = None  # the policy that thread last called
        self.goal, self.result = PolicyGoal(), GoalResult()  # of the goal that is executed, or the last one
        self._future: futures.Future[GoalResult] | None = None
        self._begun_ns = self._goals = 0
        self._stop_reason = self._prompt = ""
        self._is_resetting = self._is_stepping = False
        self._is_plausible = False  # the first action of the goal has been checked

    # ------------------------------------------------------------------------------------------- transitions

    def configure(self) -> None:
        """Load contract and policy, and check the robot without a publisher."""
        options = self._options
        contract = self.contract = load_contract(options.contract)
        check_blocks(contract)
        self._controllers = load_block(contract, "runner").controllers if "runner" in contract.blocks else None
        if self._controllers is not None:
            message_class(SWITCH_CONTROLLER)  # raises without its package
        robot = RobotOptions(contract, clock=self._clock, **options.robot)
        self._profile = robot.applied_to(load_real_profile(contract, ignored=robot.ignore_inputs))
        own = {"backend": "real"} if policy_accepts(options.policy, "backend") else {}
        policy = load_policy(
            options.policy, contract, policy_file=options.policy_file, trust=options.trust_policy, **own
        )
        self._policy = ChunkRunner(policy, options.chunks, pacing="realtime", wait_s=longest_wait_s(contract))
        try:
            self._check_robot(lambda check: not check.name.startswith("state."))  # it may be switched off yet
        except BaseException:
            self.cleanup()
            raise

    def activate(self) -> None:
        """Check the robot and its safety inputs, switch its controllers, and open the environment.

        Nothing is published before a goal. After an error the controllers are as before; raises EmbodiedEnvError.
        """
        self._stop_reason = ""
        inactive = {f"state.{name}" for name in self._profile.active}  # the switch may activate them
        self._check_robot(lambda check: check.name not in inactive)
        try:
            if self._switched not in (None, self._controllers):  # those of a contract that has changed since
                self._switch_back()
            if self._controllers is not None:
                earlier, self._switched = self._switched, self._controllers
                try:
                    self._switch(self._controllers, back=False)
                except NotRequestedError:
                    self._switched = earlier
                    raise
            self._open()
        except BaseException as error:
            try:
                self.deactivate("activation failed")
            except EmbodiedEnvError as later:
                raise BackendNotReadyError(f"{error}; then {later}") from error
            raise

    def deactivate(self, why: str) -> None:
        """Brake, end the goal, close the environment, and switch the controllers back.

        Raises BackendNotReadyError if the controllers are not switched. The next call tries it again.
        """
        self.stop(why)
        if not self.wait() and self._future is not None:  # the environment brakes the robot
            hanging = replace(self.result, message=f"{why}; {_HANGS}")
            with suppress(futures.InvalidStateError):  # it has just returned
                self._future.set_result(hanging)
                self.result, self._hanging, self._hanging_policy = hanging, self._thread, self._policy
        try:
            if self._env is not None:
                self._env.close()
        finally:
            self._env = None
            self._switch_back()

    def cleanup(self) -> None:
        """Close the policy, unless it hangs. Idempotent."""
        policy, self._policy = self._policy, None
        is_hanging = policy is self._hanging_policy and self._hanging.is_alive()  # its `close` might hang too
        if policy is not None and not is_hanging:
            with policy_errors(f"policy {self._options.policy!r}", "close"):
                policy.close()

    def _check_robot(self, is_wanted: Callable[[Check], bool]) -> None:
        namespace, limit_s = self._options.robot["namespace"], self._profile.connect_timeout_s
        checks = survey(self.contract, self._profile, namespace=namespace, timeout_s=limit_s, settle_s=0.0)
        raise_unless_passed(filter(is_wanted, checks))

    def _switch(self, controllers: RunnerControllers, *, back: bool) -> None:
        robot = self._options.robot
        ros_args = ("-r", f"__node:={robot['node_name']}_controllers")
        switch_controllers(controllers, back=back, name="controllers", namespace=robot["namespace"], ros_args=ros_args)

    def _switch_back(self) -> None:
        if self._switched is not None:
            self._switch(self._switched, back=True)
            self._switched = None

    def _open(self) -> EmbodiedEnv:
        """Open the armed environment, and wait until every safety input permits motion."""
        plays = self._policy is not None and find_start(self._policy.policy) is not None
        stages: dict[str, Any] = {"action_stages": None} if plays else {}
        env = self._env = EmbodiedEnv(self.contract, backend="real", **self._options.robot, **stages)
        try:
            self._await_permission(env)
        except BaseException:
            self._env = None
            env.close()
            raise
        return env

    def _await_permission(self, env: EmbodiedEnv) -> None:
        env.stepper.lifecycle.open()
        last_ns = self._clock.now_ns() + round(self._profile.connect_timeout_s * NS_PER_S)
        while not self._stop_reason and (found := self.findings()):
            if self._clock.now_ns() > last_ns:
                problem = "; ".join(f"[{each.code}] {each.detail}" for each in found)
                raise BackendNotReadyError(f"safety inputs do not permit motion: {problem}")
            self._clock.sleep_until_ns(self._clock.now_ns() + _POLL_NS)

    # ------------------------------------------------------------------------------------------------ goals

    @property
    def is_running(self) -> bool:
        """Whether a goal is executed."""
        return self._future is not None and not self._future.done()

    @property
    def last_transition(self) -> Transition | None:
        """The last step of the episode, or None during its reset."""
        return None if self._env is None or not self._is_stepping else self._env.last_transition

    @property
    def progress(self) -> float:
        """The share of the goal that is done, by its episodes or its time."""
        goal, step = self.goal, self.last_transition
        share = 0.0 if step is None else step.info["step_index"] / self.contract.episode.horizon_steps
        by_time = self._elapsed_s() / goal.seconds if goal.seconds else 0.0
        return min(1.0, max((self.result.episodes + min(1.0, share)) / goal.last_episode, by_time))

    def _elapsed_s(self) -> float:
        return (self._clock.now_ns() - self._begun_ns) / NS_PER_S if self._begun_ns else 0.0

    def findings(self, inputs: Collection[str] | None = None) -> list[Finding]:
        """Return the findings of the safety `inputs`, by default all, that prevent motion."""
        source = None if self._env is None else find_estop_source(self._env.stepper.backend)
        states = {} if source is None else source.estops()
        return safety_input_findings({name: states[name] for name in states if inputs is None or name in inputs})

    def check(self, goal: PolicyGoal) -> None:
        """Raise UsageError or BackendNotReadyError for a goal that cannot be executed now."""
        if self.is_running:
            step = self.last_transition
            at = "its reset" if step is None else f"step {step.info['step_index']} of episode {self.result.episodes}"
            raise UsageError(f"another goal is executed, at {at} (expected one at a time); cancel it, or wait")
        if self._hanging.is_alive():
            raise BackendNotReadyError(f"{_HANGS} from an earlier goal (expected its answer); restart the runner")
        changes, env = check_goal(goal, self.contract), self._env
        if changes and self._profile.relay:
            raise UsageError("limits of a goal with a relay, which enforces those of its own contract; omit them")
        if env is not None and (latched := latched_estop(env.stepper.gate)):
            raise BackendNotReadyError(f"{latched}: deactivate and activate the runner")
        if found := self.findings(self._profile.estop):
            raise BackendNotReadyError(f"[{found[0].code}] {found[0].detail}")

    def start(self, goal: PolicyGoal) -> futures.Future[GoalResult]:
        """Execute a goal that `check` accepts, whose result or error is in the future."""
        self.goal, self.result, self._stop_reason, self._prompt = goal, GoalResult(), "", goal.instruction
        self._is_plausible, self._begun_ns, self._goals = False, 0, self._goals + 1
        future: futures.Future[GoalResult] = futures.Future()
        self._future = future
        self._thread = threading.Thread(target=self._run, args=(future, self.result), name="goal", daemon=True)
        self._thread.start()
        return future

    def instruct(self, text: str) -> None:
        """Change the prompt from the next inference on, or raise UsageError without a goal."""
        check_instruction(text)
        if not self.is_running:
            raise UsageError("no goal is executed (expected one); pass the instruction with the next goal")
        self._prompt = text

    def stop(self, why: str) -> None:
        """Let the goal, if there is one, brake the robot and end, from any thread."""
        if not self.is_running:
            return
        self._stop_reason = self._stop_reason or why
        if self._is_resetting and (env := self._env) is not None:
            self._env = None
            env.close()  # nothing else ends a reset, which may drive the robot home

    def wait(self) -> bool:
        """Return whether the robot is at rest after `stop`, False if the policy does not return."""
        if self._future is None:
            return True
        return not futures.wait([self._future], STOP_GRACE_S + stopping_time_s(self.contract)).not_done

    def _run(self, future: futures.Future[GoalResult], result: GoalResult) -> None:
        """Run the episodes of a goal, whose `future` is done already if the policy was late."""
        error: BaseException | None = None
        try:
            self._run_episodes(result)
        except (BackendError, PolicyError, RecordError, TaskError, UsageError) as expected:
            result.message = str(expected)
        except BaseException as unexpected:  # noqa: BLE001 - raised by the future
            error = None if isinstance(unexpected, ClosedError) and self._stop_reason else unexpected
        self._is_stepping = False
        result.message = self._stop_reason or result.message
        with suppress(futures.InvalidStateError):
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _run_episodes(self, result: GoalResult) -> None:
        policy, env, own = self._policy, self._env or self._open(), self._options
        assert policy is not None  # noqa: S101 - for the type checker
        draw_from(policy.policy, env.action_space)
        if not env.capabilities.acknowledges_commands:
            env.change_limits(check_goal(self.goal, self.contract))  # those of the goal before end with the reset
        seed = policy_seed(own.seed, self._goals)
        identity = policy.identity.as_mapping() | ({} if own.chunks == "wait" else {"chunks": own.chunks})
        recorder = RecordTransitions(_KeptOpen(env), own.out, policy=identity)
        try:
            for episode in itertools.count():
                with policy_errors(f"policy {own.policy!r}", f"the reset of episode {episode}"):
                    policy.reset(seed=policy_seed(seed, episode), episode_index=episode)
                self._is_stepping, self._is_resetting = False, True
                try:
                    if self._stop_reason:
                        return
                    if (start := find_start(policy.policy)) is not None:
                        env.start_from(start)
                    prompt = self._prompt
                    options = {INSTRUCTION: prompt} if prompt else None
                    observation, info = recorder.reset(seed=None if episode else seed, options=options)
                finally:
                    self._is_resetting = False
                result.run = str(recorder.path.absolute())
                policy.instruct(info["instruction"])
                env.require(policy.required_sensors)
                self._begun_ns = self._begun_ns or self._clock.now_ns()
                self._run_episode(recorder, env, policy, observation, result, prompt=prompt)
                if result.message or self._reason_to_end() or result.episodes >= self.goal.last_episode:
                    return
        finally:
            recorder.close()
            if (problem := recorder.losses.problem) and not result.message:
                result.message = f"incomplete record: {problem}"

    def _reason_to_end(self) -> str:
        is_over = 0.0 < self.goal.seconds <= self._elapsed_s()
        return self._stop_reason or (_TIME_OVER if is_over else "")

    def _run_episode(
        self,
        recorder: RecordTransitions,
        env: EmbodiedEnv,
        policy: ChunkRunner,
        observation: Observation,
        result: GoalResult,
        *,
        prompt: str,
    ) -> None:
        """Step until the contract ends the episode, with holds once the goal must end."""
        is_over, reason = False, ""
        while not is_over:
            reason = reason or self._reason_to_end()
            action: Any = NoAction(reason)
            if not reason:
                try:
                    with policy_errors(f"policy {self._options.policy!r}", f"step {env.step_index + 1}"):
                        if self._prompt != prompt and not policy.has_due:
                            prompt = self._prompt
                            policy.instruct(prompt)
                            env.instruct(prompt)
                        action = policy(observation)
                    self._check_plausible(policy, observation, action)
                    attach_action(env, policy, action)
                except (PolicyError, UsageError) as error:
                    reason, result.message = "the policy failed", str(error)
                    action = NoAction(reason)
            observation, _, terminated, truncated, info = recorder.step(action)
            is_over, self._is_stepping = terminated or truncated, True
        result.add_episode(info, is_cut=reason == _TIME_OVER)

    def _check_plausible(self, policy: ChunkRunner, observation: Observation, action: Any) -> None:  # noqa: ANN401
        if self._is_plausible or isinstance(action, NoAction):
            return
        first = [action, *policy.upcoming(_MOST_CHECKED)]
        if lines := find_implausible(policy.policy, self.contract, observation, first):
            raise UsageError(f"implausible policy: {'; '.join(lines)}; correct its unit, scale or statistics")
        self._is_plausible = True


class _KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the environment open when the recorder of a goal is closed."""

    def close(self) -> None:
        """Do nothing, since the runner closes the environment."""
