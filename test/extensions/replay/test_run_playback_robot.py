import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from evidence import assert_sound

pytest.importorskip("rclpy", reason="needs rclpy")

from std_msgs.msg import Bool, String

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.errors import BackendNotReadyError
from embodied_env.extensions.replay.playback_deviations import DEVIATIONS, write_deviations
from embodied_env.processes.child_process import Child, simulator
from embodied_env.record import read_run
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime, pytest.mark.needs("evaluation")]

NAMESPACE = "/played"
ARM = embodied_env.load_contract("arm_reach")


def with_channel(confirm):
    """Return a short contract with this channel to the operator, which a busy machine does not stop."""
    reset = {"service": "simulator/reset", "parameters": True, "confirm": confirm}
    profile = {**ARM.backends["real"], "discovery_s": 0.0, "reset": reset}
    sensors = {name: replace(sensor, max_age_s=10.0) for name, sensor in ARM.sensors.items()}
    safety = replace(ARM.safety, watchdog=WatchdogSpec(hold_steps=1000, stop_steps=2000))
    episode = replace(ARM.episode, horizon_steps=12)
    return replace(ARM, sensors=sensors, safety=safety, episode=episode, backends={**ARM.backends, "real": profile})


@pytest.fixture(scope="module")
def robot(lasting_domain, tmp_path_factory):
    """Run a free-running emulator as a robot for the backend, and return its domain and a run to play."""
    contract = with_channel("topic")
    folder = tmp_path_factory.mktemp("recorded")
    run = (
        embodied_env.evaluate(contract, "scripted", backend="mujoco", episodes=1, seed=5, record=folder).results[0].path
    )
    with lasting_domain() as domain_id:
        child = Child(simulator("-", namespace=NAMESPACE, free_running=True), first_line=dump_contract(contract))
        try:
            yield SimpleNamespace(domain_id=domain_id, run=run)
        finally:
            child.stop()


class Operator:
    """Answers each question on the topic, and keeps the questions."""

    def __init__(self, domain_id, *, answer=True):
        self.questions, self._answer, self._is_pending = [], answer, threading.Event()
        self._ros = RosNode("operator", namespace=NAMESPACE, clock=SteadyClock(), domain_id=domain_id)
        node = self._ros.node
        topic = f"{NAMESPACE}/environment/confirm"
        self._publisher = node.create_publisher(Bool, topic, RELIABLE)
        self._listener = ReceiveThread(node, SteadyClock())
        self._has_left, self._thread = threading.Event(), threading.Thread(target=self._answer_all)
        node.create_subscription(String, topic + "_request", self._on_question, LATCHED)

    def _on_question(self, message):
        if message.data:
            self.questions.append(message.data)
            self._is_pending.set()
        else:
            self._is_pending.clear()

    def _answer_all(self):
        """Repeat the answer while a question is pending, as the first may be published before it can be received."""
        while not self._has_left.wait(0.02):
            if self._is_pending.is_set():
                self._publisher.publish(Bool(data=self._answer))

    def __enter__(self):
        self._listener.start()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._has_left.set()
        self._thread.join()
        self._listener.stop()
        self._ros.close()


def play(robot, folder, contract, **options):
    given = {
        "backend": "real",
        "namespace": NAMESPACE,
        "domain_id": robot.domain_id,
        "confirm_chosen": True,
        "connect_timeout_s": 60.0,
    }
    address = f"run:{robot.run}#1"
    return (
        embodied_env.evaluate(contract, address, episodes=1, seed=0, record=folder, **given, **options).results[0].path
    )


def test_an_operator_confirms_the_deviations_before_the_robot_moves(robot, tmp_path, caplog):
    with Operator(robot.domain_id) as operator:
        path = play(robot, tmp_path, with_channel("topic"))
    (question,) = operator.questions
    assert "12 steps: all 12 commands equal bit for bit" in question
    assert "largest distance: j" in question
    assert "start the episode? reset options to set up: target=" in question
    assert any(record.message in question for record in caplog.records)
    reset = next(read_run(path).resets())
    assert reset["inner"]["confirmed_by"] == "topic"
    lines = write_deviations(path, robot.run)
    (episode,) = json.loads((path / DEVIATIONS).read_text())["episodes"]
    assert (episode["steps"], episode["rows"][0]) == (12, 1)
    assert episode["columns"]["joints_position j2"]["rms"] > 0.0
    assert any("joints_position j2: RMS" in line for line in lines)
    assert_sound(path)


def test_an_operator_who_declines_ends_it(robot, tmp_path):
    declined = pytest.raises(BackendNotReadyError, match="the operator declined on")
    with Operator(robot.domain_id, answer=False), declined:
        play(robot, tmp_path, with_channel("topic"))


def test_without_a_channel_it_ends_after_the_dry_run(robot, tmp_path, caplog):
    with pytest.raises(
        BackendNotReadyError, match=r"no channel to an operator; nothing was sent; declare .*--emulator"
    ):
        play(robot, tmp_path, with_channel("none"))
    assert "12 steps: all 12 commands equal bit for bit" in caplog.text


def test_ctrl_c_brakes_the_robot(robot, tmp_path):
    class Interrupting:
        """Presses Ctrl-C in the first step in which the robot moves."""

        def resetting(self):
            """Do nothing."""

        def ended(self, count):
            """Do nothing."""

        def stepped(self, info):
            if np.abs(info["action"]["applied"]).max() > 0.1:
                raise KeyboardInterrupt

    with Operator(robot.domain_id) as operator, pytest.raises(KeyboardInterrupt):
        play(robot, tmp_path, with_channel("topic"), observer=Interrupting())
    assert len(operator.questions) == 1
    (path,) = tmp_path.glob("*arm_reach*")
    (*_, last) = read_run(path).transitions()
    assert last["info"]["end_reason"] == ""
    env = embodied_env.make(
        with_channel("none"),
        backend="real",
        namespace=NAMESPACE,
        domain_id=robot.domain_id,
        armed=False,
        connect_timeout_s=60.0,
    )
    with env:
        observation, _ = env.reset()
        assert np.abs(observation["joints_velocity"]).max() < 0.02
