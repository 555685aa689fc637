"""A robot emulator, a runner in a process of its own, and a client of it by rclpy's own calls."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import robot_rig
import yaml
from action_msgs.msg import GoalStatus
from embodied_env_interfaces.action import RunPolicy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from runner_policies import MODE_FILE
from std_msgs.msg import String

from embodied_env.processes.child_process import CLI, Child, ProcessSpec, relay, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED
from embodied_env.timing.clock import SteadyClock

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
SHUTDOWN = Transition.TRANSITION_ACTIVE_SHUTDOWN
SUCCEEDED, ABORTED, CANCELED = (
    GoalStatus.STATUS_SUCCEEDED,
    GoalStatus.STATUS_ABORTED,
    GoalStatus.STATUS_CANCELED,
)
ACTION_PACKAGE = "embodied_env_interfaces"
POLICY = "runner_policies:selected()"
FASTEST_S = robot_rig.LAYOUT.limits.fastest[0]
FEWEST_STEPS = 3  # of braking, of six without a stall of the machine
MANAGER = f"{robot_rig.NAMESPACE}/controller_manager"
BLOCK = {
    "fingerprint": False,
    "controllers": {
        "activate": ["forward"],
        "deactivate": ["trajectory"],
        "timeout_s": robot_rig.TIMEOUT_S,
        "manager": MANAGER,
    },
}


def write_contract(path, *, blocks=None, has_estop=True, **profile):
    """Write the contract of the emulated robot, with an e-stop that the emulator does not publish."""
    contract = yaml.safe_load(Path(robot_rig.SHIPPED.source).read_text())
    contract["episode"]["horizon_steps"] = 2000
    contract["override_robot_limits"] = True
    contract["sensors"]["joints"] = {}
    for sensor in contract["sensors"].values():
        sensor["max_age_s"] = 1.0  # a stall of the machine ends no episode
    contract["backends"]["mujoco_ros"] = {
        **contract["backends"]["mujoco_ros"],
        "emulator": {"tick_s": robot_rig.PERIOD_S / 2},
    }
    contract["safety"] = {"watchdog": {"hold_steps": 4, "stop_steps": 40}}
    estop = {name: {**spec, "safe": list(spec.get("safe", (False,)))} for name, spec in robot_rig.ESTOPS.items()}
    estop["button"]["timeout_s"] = 5.0  # a stall of the machine is no stop
    patient = {"discovery_s": 0.0, "connect_timeout_s": robot_rig.TIMEOUT_S}
    contract["backends"]["real"] = {**patient, **({"estop": estop} if has_estop else {}), **profile}
    path.write_text(yaml.safe_dump(contract if blocks is None else {**contract, "blocks": blocks}))
    return path


class Client:
    """A node that calls the runner as a user's does."""

    def __init__(self, process):
        self.process = process
        self.ros = RosNode("client", namespace=robot_rig.NAMESPACE, clock=SteadyClock(), domain_id=robot_rig.DOMAIN_ID)
        self.node = self.ros.node
        self.statuses: list = []
        self.executor = SingleThreadedExecutor(context=self.node.context)
        self.executor.add_node(self.node)
        self.changing = self.node.create_client(ChangeState, "runner/change_state")
        self.getting = self.node.create_client(GetState, "runner/get_state")
        self.action = ActionClient(self.node, RunPolicy, "run_policy")
        self.node.create_subscription(String, "runner/status", self.statuses.append, LATCHED)
        self.feedback = []

    @property
    def status(self):
        return json.loads(self.statuses[-1].data) if self.statuses else {}

    def wait_until(self, condition, timeout_s=robot_rig.TIMEOUT_S):
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, (self.status, self.process.stderr_tail())
            self.executor.spin_once(timeout_sec=0.02)

    def answer(self, future):
        self.wait_until(future.done)
        return future.result()

    def call(self, kind, service, **fields):
        client = self.node.create_client(kind, service)
        self.wait_until(client.service_is_ready)
        response = self.answer(client.call_async(kind.Request(**fields)))
        self.node.destroy_client(client)
        return response

    def change(self, transition):
        """Request a transition, and return whether it succeeded."""
        self.wait_until(self.changing.service_is_ready)
        return self.answer(self.changing.call_async(ChangeState.Request(transition=Transition(id=transition)))).success

    def state(self):
        self.wait_until(self.getting.service_is_ready)
        return self.answer(self.getting.call_async(GetState.Request())).current_state.label

    def send(self, **goal):
        self.wait_until(self.action.server_is_ready)
        self.feedback = []
        request = RunPolicy.Goal(**goal)
        return self.answer(self.action.send_goal_async(request, lambda each: self.feedback.append(each.feedback)))

    def result(self, handle):
        """Return status and result of a goal."""
        response = self.answer(handle.get_result_async())
        return response.status, response.result

    def run(self, **goal):
        handle = self.send(**goal)
        assert handle.accepted, self.status
        return self.result(handle)

    def close(self):
        self.action.destroy()
        self.executor.shutdown()
        self.ros.close()


class Manager:
    """A strict controller manager, all or none, with the controllers of `BLOCK`."""

    def __init__(self, node):
        from controller_manager_msgs.msg import ControllerState
        from controller_manager_msgs.srv import ListControllers, SwitchController

        self.states, self.refuses = {"forward": "inactive", "trajectory": "active"}, False
        self.requests: list = []

        def listed(_, response):
            response.controller = [ControllerState(name=name, state=state) for name, state in self.states.items()]
            return response

        def switch(request, response):
            start, end = list(request.activate_controllers), list(request.deactivate_controllers)
            self.requests.append((start, end, request.strictness))
            wrong = [name for name in start if self.states[name] == "active"]
            wrong += [name for name in end if self.states[name] != "active"]
            response.ok, response.message = not (wrong or self.refuses), "a conflict" if self.refuses else ""
            if response.ok:
                self.states |= dict.fromkeys(start, "active") | dict.fromkeys(end, "inactive")
            return response

        node.create_service(ListControllers, f"{MANAGER}/list_controllers", listed)
        node.create_service(SwitchController, f"{MANAGER}/switch_controller", switch)


class RunnerRig:
    """An emulated robot, its e-stop, a runner that can be killed and started again, and a client."""

    SUCCEEDED, ABORTED, CANCELED = SUCCEEDED, ABORTED, CANCELED
    manager: Manager

    def __init__(self, folder, *options, policy=POLICY, has_types=True, has_relay=False, blocks=None, **profile):
        self.folder, self.mode_file = folder, folder / "mode"
        self.contract = write_contract(folder / "arm.yaml", blocks=blocks, **profile)
        self.select("")
        emulated = write_contract(folder / "emulated.yaml", has_estop=False)
        robot = simulator(str(emulated), namespace=robot_rig.NAMESPACE, free_running=True)
        self.robot, self.monitor = (
            Child(robot, environment=robot_rig.ENVIRONMENT),
            robot_rig.Monitor(robot_rig.NAMESPACE),
        )
        relayed = relay(str(self.contract), namespace=robot_rig.NAMESPACE, backend="real")
        self.relay = Child(relayed, environment=robot_rig.ENVIRONMENT) if has_relay else None
        options = (*options, *["--relay"] * has_relay)
        arguments = (str(self.contract), "--policy", policy, "--emulator", "--namespace", robot_rig.NAMESPACE, *options)
        self.spec = ProcessSpec(role="runner", module=CLI, arguments=("runner", *arguments, "--out", str(folder)))
        generated = [place for place in sys.path if "/build/interfaces/" in place]
        places = [Path(__file__).parent, *(each for each in generated if has_types or ACTION_PACKAGE not in each)]
        self.environment = {**robot_rig.ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, places))}
        self.environment[MODE_FILE] = str(self.mode_file)
        self.first = 0
        self.start()

    @property
    def commands(self):
        """The commands on the actuator's topic so far, as another node received them."""
        return self.monitor.commands

    def start(self):
        self.process = Child(self.spec, environment=self.environment)
        self.client = Client(self.process)

    def restart(self):
        self.process.stop(by_input=False)
        self.client.close()
        self.start()

    def select(self, mode):
        """Select what the policy does from its next reset on."""
        self.mode_file.write_text(mode)

    def kill(self):
        self.process.note_shared_memory()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.stop(by_input=False)

    def activate(self):
        """Bring the runner to the state active, from any primary state."""
        self.monitor.publish_safe_inputs()
        state = self.client.state()
        if state == "unconfigured":
            assert self.client.change(CONFIGURE), self.client.status
        if state != "active":
            assert self.client.change(ACTIVATE), self.client.status

    def deactivate(self):
        """Bring the runner to the state inactive, from any primary state."""
        state = self.client.state()
        if state != "inactive":
            assert self.client.change(CONFIGURE if state == "unconfigured" else DEACTIVATE), self.client.status

    def close(self):
        try:
            self.process.stop(by_input=False)
        finally:
            self.client.close()
            if self.relay is not None:
                self.relay.stop(by_input=False)
            self.monitor.close()
            self.robot.stop(by_input=False)

    def run_to_full_speed(self):
        """Send a goal without an end, and return its handle when the robot moves at full speed."""
        for _ in range(robot_rig.ATTEMPTS):  # a stall of the machine ends an episode
            self.first, handle = len(self.commands), self.client.send(seconds=600.0)
            assert handle.accepted, self.client.status
            ended = handle.get_result_async()
            self.client.wait_until(lambda: self.speed() > 0.9 * FASTEST_S or ended.done())  # noqa: B023 - used at once
            if not ended.done():
                return handle
        raise AssertionError(f"{robot_rig.ATTEMPTS} goals ended early: {self.client.status}")

    def speed(self):
        """Return the speed of the first joint by the last two commands of that goal, rad/s."""
        last = self.commands[self.first :][-2:]
        return (last[1][0] - last[0][0]) / robot_rig.PERIOD_S if len(last) == 2 else 0.0

    def check_braked(self):
        """Assert that the last commands brake from full speed to rest, and that none follows."""
        self.client.wait_until(lambda: self.speed() == 0.0)  # the last command may arrive after the answer
        sent = len(self.commands)
        speeds = np.diff(np.array(self.commands[self.first :])[:, 0]) / robot_rig.PERIOD_S
        last_fast = np.flatnonzero(speeds > 0.9 * FASTEST_S)[-1]
        braking = speeds[last_fast:]
        assert braking[-1] == 0.0
        assert np.count_nonzero(braking) >= FEWEST_STEPS, braking
        assert np.abs(speeds).max() <= FASTEST_S + robot_rig.ROUNDING
        time.sleep(3 * robot_rig.PERIOD_S)  # in which a moving robot would get other commands
        assert all(command == self.commands[sent - 1] for command in self.commands[sent:])
