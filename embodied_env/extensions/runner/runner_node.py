"""The lifecycle node of the runner with ``run_policy``, or its replacement without types."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from embodied_env.errors import BackendNotReadyError, EmbodiedEnvError, MissingDependencyError, UsageError, described
from embodied_env.extensions.runner.policy_goal import GoalResult, PolicyGoal
from embodied_env.extensions.runner.policy_runner import PolicyRunner, RunnerOptions
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.setup_checks import rclpy_import_errors, ros_init_errors
from embodied_env.timing.clock import NS_PER_S, SteadyClock

with rclpy_import_errors("the runner"):
    import rclpy
    from rcl_interfaces.msg import ParameterDescriptor
    from rclpy.action import ActionServer, CancelResponse, GoalResponse
    from rclpy.clock import Clock as RosClock
    from rclpy.clock import ClockType
    from rclpy.context import Context
    from rclpy.exceptions import ParameterException
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
    from rclpy.parameter import Parameter
    from rclpy.signals import SignalHandlerOptions

    from embodied_env.ros.transport.qos import LATCHED

NODE = "runner"
ACTION = "embodied_env_interfaces/action/RunPolicy"
CHECK = "embodied_env_interfaces/srv/CheckGoal"
INSTRUCT = "embodied_env_interfaces/srv/SetInstruction"

_FEEDBACK_S = 0.1
_SPIN_S = 0.05
_SENT_NS = NS_PER_S // 5  # in which the last results and the state reach their readers
_RESULT_S = 60  # how long the server keeps the result of a goal
_READ_ONLY = ParameterDescriptor(read_only=True)
_SCALARS: dict[str, Any] = {"instruction": "", "episodes": 0, "seconds": 0.0}  # parameters of a goal
_ARRAYS = {
    "limit_joints": Parameter.Type.STRING_ARRAY,
    "limit_velocities": Parameter.Type.DOUBLE_ARRAY,
    "limit_accelerations": Parameter.Type.DOUBLE_ARRAY,
}


class RunnerNode(LifecycleNode):  # type: ignore[misc] # rclpy has no type information
    """A managed node around a `PolicyRunner`, with callbacks in the spinning thread.

    A transition answers when it has ended. ``~/status`` has the last state and why it is not another one.
    """

    def __init__(self, options: RunnerOptions, *, namespace: str | None, context: Context) -> None:
        """Create the node, with `options` as the defaults of its parameters."""
        super().__init__(NODE, context=context, namespace=namespace)
        self._status = self.create_publisher(message_class("std_msgs/msg/String"), "~/status", LATCHED)
        self._state, self._reason = "unconfigured", ""
        self._fault = ""  # of a goal, which leads to error processing
        self._handle: Any = None  # of the goal of an action client
        self._future: futures.Future[GoalResult] | None = None  # of a goal that has not been ended here
        self._runner = PolicyRunner(self._with_parameters(options))
        for service in self.services:
            if service.srv_type is message_class("lifecycle_msgs/srv/ChangeState"):
                service.callback = self._guarded(service.callback)
        trigger = message_class("std_srvs/srv/Trigger")
        for name, respond in (("run", self._on_run), ("instruct", self._on_instruct), ("stop", self._on_stop)):
            self.create_service(trigger, f"~/{name}", respond)
        self._offers = [f"{self.get_name()}/{name}" for name in ("run", "instruct", "stop")]
        self._server: Any = None
        try:
            self._create_action(*map(message_class, (ACTION, CHECK, INSTRUCT)))
        except MissingDependencyError as error:
            self.get_logger().warning(f"no action run_policy: {error}")
        self.declare_parameter("offers", self._offers, _READ_ONLY, ignore_override=True)
        self.create_timer(_FEEDBACK_S, self._on_timer, clock=RosClock(clock_type=ClockType.STEADY_TIME))
        self._report()

    def _with_parameters(self, options: RunnerOptions) -> RunnerOptions:
        """Declare the parameters, of which those that select what is loaded are read-only."""
        values = {}
        try:
            for name in ("contract", "policy", "policy_file", "chunks", "out", "seed"):
                default = getattr(options, name)
                values[name] = self.declare_parameter(name, "" if default is None else default, _READ_ONLY).value
            for name, value in (_SCALARS | _ARRAYS).items():
                self.declare_parameter(f"goal.{name}", value)
        except ParameterException as error:
            self.destroy_node()
            raise UsageError(f"invalid parameter: {error}") from None
        values["policy_file"] = values["policy_file"] or None
        names = (f"{self.get_name()}_environment", self.get_namespace())
        remapped = ("-r", f"__node:={names[0]}", "-r", f"__ns:={names[1]}")  # those of the command line are this node's
        robot = {**options.robot, "node_name": names[0], "namespace": names[1], "ros_args": remapped}
        return replace(options, **values, robot=robot)

    def _create_action(self, action: Any, check: Any, instruct: Any) -> None:  # noqa: ANN401 - generated types
        self.create_service(check, "~/check_goal", self._on_check)
        self.create_service(instruct, "~/set_instruction", self._on_instruct)
        self._server = _GoalServer(
            self,
            action,
            "run_policy",
            self._begin,
            goal_callback=self._on_goal,
            cancel_callback=self._on_cancel,
            result_timeout=_RESULT_S,
        )
        own = [f"{self.get_name()}/{name}" for name in ("check_goal", "set_instruction")]
        self._offers = ["run_policy", *own, *self._offers]

    # ------------------------------------------------------------------------------------------- transitions

    def _guarded(self, change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Refuse an invalid transition, for which rclpy would raise and end the process."""

        def on_change_state(request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
            try:
                return change(request, response)
            except RuntimeError as error:  # RCLError, which rclpy does not export
                self._report(reason=f"no such transition from {self._state}: {request.transition.id} ({error})")
                response.success = False
                return response

        return on_change_state

    def on_configure(self, _state: Any) -> Any:  # noqa: ANN401 - of rclpy
        """Load the contract and the policy, and check the robot."""
        return self._change("inactive", self._runner.configure)

    def on_activate(self, _state: Any) -> Any:  # noqa: ANN401
        """Check the safety inputs, switch the controllers, and accept goals."""
        return self._change("active", self._runner.activate)

    def on_deactivate(self, _state: Any) -> Any:  # noqa: ANN401
        """Brake and hold, also after an error, and switch the controllers back."""
        if self._fault:
            return TransitionCallbackReturn.ERROR
        done = self._change("inactive", partial(self._runner.deactivate, "the runner is deactivated"))
        return done if done == TransitionCallbackReturn.SUCCESS else TransitionCallbackReturn.ERROR

    def on_cleanup(self, _state: Any) -> Any:  # noqa: ANN401
        """Close the policy."""
        return self._leave("unconfigured", self._runner.cleanup)

    def on_shutdown(self, _state: Any) -> Any:  # noqa: ANN401
        """Brake and hold, switch the controllers back, and close the policy."""
        brake = partial(self._runner.deactivate, "the runner is shut down")
        return self._leave("finalized", brake, self._runner.cleanup)

    def on_error(self, _state: Any) -> Any:  # noqa: ANN401
        """Brake and hold, and close the policy, so that the node can be configured again."""
        reason, self._fault = self._fault or self._reason, ""
        brake = partial(self._runner.deactivate, "an error occurred")
        return self._leave("unconfigured", brake, self._runner.cleanup, reason=reason)

    def _leave(self, state: str, *acts: Callable[[], None], reason: str = "") -> Any:  # noqa: ANN401
        """Run all of `acts` and enter `state` for a reason, to which their errors are added."""
        problems = [reason] if reason else []
        for act in acts:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the next one runs in any case
                problems.append(str(error) if isinstance(error, EmbodiedEnvError) else described(error))
        self._report(state, "; then ".join(dict.fromkeys(problems)))
        is_done = state == "unconfigured" or not problems  # both end a shutdown in its state
        return TransitionCallbackReturn.SUCCESS if is_done else TransitionCallbackReturn.FAILURE

    def _change(self, state: str, act: Callable[[], None]) -> Any:  # noqa: ANN401
        """Run `act` and enter `state`, or stay in the state after an error of ours."""
        try:
            act()
        except EmbodiedEnvError as error:
            self._report(self._state, str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self._reason = described(error)
            raise
        self._report(state)
        return TransitionCallbackReturn.SUCCESS

    def start(self) -> None:
        """Configure and activate, or raise BackendNotReadyError with the reason of a failure."""
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()
        if self._state != "active":
            raise BackendNotReadyError(self._reason)

    def end(self) -> None:
        """Shut down from any state, with `is_busy` until the goal has its result."""
        if self._state != "finalized":
            self.trigger_shutdown()

    @property
    def is_busy(self) -> bool:
        """Whether the result of a goal has not been sent."""
        return self._handle is not None

    def _report(self, state: str | None = None, reason: str = "") -> None:
        if reason and reason != self._reason:
            self.get_logger().error(f"{self._state}: {reason}")
        self._state, self._reason = state or self._state, reason
        status = {"state": self._state, "reason": reason, "running": self._runner.is_running, "offers": self._offers}
        status |= asdict(self._runner.result)
        self._status.publish(message_class("std_msgs/msg/String")(data=json.dumps(status)))

    # ------------------------------------------------------------------------------------------------- goals

    def _refusal(self, goal: PolicyGoal) -> str:
        """Return why a goal is rejected, or ""."""
        self._end_goal()  # the last one may have ended before this request, and its task not have run
        if self._state != "active":
            return f"the runner is {self._state} (expected active)"
        try:
            self._runner.check(goal)
        except EmbodiedEnvError as error:
            return str(error)
        return ""

    def _on_goal(self, request: Any) -> Any:  # noqa: ANN401 - a generated type
        if reason := self._refusal(PolicyGoal.of(request)):
            self._report(reason=f"goal rejected: {reason}")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _on_cancel(self, _handle: Any) -> Any:  # noqa: ANN401
        self._runner.stop("canceled")
        return CancelResponse.ACCEPT

    def _on_check(self, request: Any, response: Any) -> Any:  # noqa: ANN401
        response.reason = self._refusal(PolicyGoal.of(request))
        response.accepted = not response.reason
        return response

    def _on_run(self, _request: Any, response: Any) -> Any:  # noqa: ANN401
        values = {name: self.get_parameter(f"goal.{name}").value for name in _SCALARS}
        values |= {name: tuple(self.get_parameter_or(f"goal.{name}").value or ()) for name in _ARRAYS}
        goal = PolicyGoal(**values)
        reason = self._refusal(goal)
        response.success, response.message = not reason, reason or "the goal is executed; ~/status has its result"
        if response.success:
            self._start(goal)
        return response

    def _on_instruct(self, request: Any, response: Any) -> Any:  # noqa: ANN401
        """Change the prompt to that of a request with one, or of the parameter."""
        try:
            self._runner.instruct(getattr(request, "instruction", self.get_parameter("goal.instruction").value))
        except UsageError as error:
            response.message = str(error)
        response.success = not response.message
        return response

    def _on_stop(self, _request: Any, response: Any) -> Any:  # noqa: ANN401
        self._runner.stop("stopped by ~/stop")
        response.success = self._runner.wait()
        response.message = "at rest" if response.success else "braked, but the policy does not return"
        return response

    def _begin(self, handle: Any) -> None:  # noqa: ANN401
        self._handle = handle
        self._start(PolicyGoal.of(handle.request))

    def _start(self, goal: PolicyGoal) -> None:
        self._future = future = self._runner.start(goal)
        future.add_done_callback(lambda _: self.executor.create_task(self._end_goal))
        self._report()

    def _end_goal(self) -> None:
        """Send the result of a goal that is over, or begin error processing."""
        future = self._future
        if future is None or not future.done():
            return
        self._future = None
        result, error = self._runner.result, future.exception()
        if error is not None:
            result.message = described(error)
            self._fault = result.message if self._state == "active" else ""
        if self._handle is not None:
            self._server.notify_execute(self._handle, partial(self._conclude, result))
        self._report(reason=self._reason)
        if self._fault:
            self.trigger_deactivate()

    def _conclude(self, result: GoalResult, handle: Any) -> Any:  # noqa: ANN401
        if self._handle is handle:  # the next goal may have begun
            self._handle = None
        if not result.message:
            handle.succeed()
        elif handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return self._server.action_type.Result(**asdict(result))

    def _on_timer(self) -> None:
        if self._handle is None or not self._runner.is_running:
            return
        step, feedback = self._runner.last_transition, self._server.action_type.Feedback()
        feedback.episode, feedback.progress = self._runner.result.episodes, self._runner.progress
        feedback.oldest_reading_s = math.nan
        if step is not None:
            feedback.step = step.info["step_index"]
            feedback.oldest_reading_s = float(step.info["latency"]["obs_age_max_s"])
            feedback.gates = list(dict.fromkeys(found.code for found in step.report.findings))
        self._handle.publish_feedback(feedback)


class _GoalServer(ActionServer):  # type: ignore[misc] # rclpy has no type information
    """Lets a goal run outside of the executor, whose awaiting tasks would keep it busy."""

    def __init__(self, node: Any, action: Any, name: str, begin: Callable[[Any], None], **options: Any) -> None:  # noqa: ANN401 - of rclpy
        """Call `begin` with the handle of each accepted goal."""
        self._begin = begin
        super().__init__(node, action, name, begin, **options)

    def notify_execute(self, goal_handle: Any, execute_callback: Any) -> None:  # noqa: ANN401
        """Begin a goal that is now executing, or send the result that the callback returns."""
        if execute_callback is None:
            self._begin(goal_handle)
        else:
            super().notify_execute(goal_handle, execute_callback)


def run_runner(
    options: RunnerOptions,
    *,
    namespace: str | None,
    stop: threading.Event,
    autostart: bool = False,
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Host the runner until `stop` is set, then brake the robot and shut down.

    `options` has the defaults of the parameters, `namespace` None is the root or that of ``--ros-args``, and `on_ready`
    is called with the namespace when the node offers its services.

    Raises:
        UsageError: for a parameter of the wrong type.
        BackendNotReadyError: if ROS 2 cannot be initialised, or with `autostart` a transition fails.
    """
    context, clock = Context(), SteadyClock()
    try:
        with ros_init_errors(EmbodiedEnvError):
            rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
            node = RunnerNode(options, namespace=namespace, context=context)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        try:
            on_ready(node.get_namespace())
            if autostart:
                node.start()
            while not stop.is_set():
                executor.spin_once(timeout_sec=_SPIN_S)
        finally:
            node.end()
            last_ns = clock.now_ns() + _SENT_NS
            while node.is_busy or clock.now_ns() < last_ns:
                executor.spin_once(timeout_sec=_SPIN_S)
            executor.shutdown()
            node.destroy_node()
    finally:
        context.try_shutdown()
