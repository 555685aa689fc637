"""After an e-stop every message names the input, its topic and how to release it, and what starts the robot again."""

import re
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import BackendNotReadyError, ResetNeededError
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

NAMESPACE = "/robot"
PATIENCE_S = 30.0
BUTTON = {"topic": "button", "latched": True, "release": "pull the red button out"}
RELEASE = "topic button; pull the red button out"
ARM = embodied_env.load_contract("arm_reach")
HOME = {"j1": 0.1, "j2": -1.5, "j3": 1.5, "j4": -1.6, "j5": -1.5, "j6": 0.1}


def arm(**reset):
    real = {"discovery_s": 0.0, "estop": {"button": BUTTON}, "reset": reset}
    return replace(ARM, backends={**ARM.backends, "real": real})


@pytest.fixture
def operator(domain_id):
    """A node of the operator next to the emulator, whose `press` presses or releases the button."""
    child = Child(
        simulator("-", namespace=NAMESPACE, source=ARM.source, free_running=True), first_line=dump_contract(arm())
    )
    node = RosNode("operator", namespace=NAMESPACE, clock=SteadyClock())

    def press(pressed):
        request = SetBool.Request(data=pressed)
        node.receiver.call(SetBool, "simulator/estop/button", request, PATIENCE_S, lambda: None)

    node.press = press
    yield node
    node.close()
    child.stop()


@pytest.mark.needs("evaluation")
def test_homing_the_operator_and_evaluate_say_how_to_go_on(operator, tmp_path, capsys):
    operator.press(True)
    with embodied_env.make(arm(home=HOME), backend="real", namespace=NAMESPACE) as env:
        with pytest.raises(BackendNotReadyError, match=f"homing refused: .*button is active: {RELEASE}; then call"):
            env.reset(seed=0)
        with pytest.raises(
            ResetNeededError, match=rf"{RELEASE}\).* then call clear_estop\(\) and reset\(\), which .*homing"
        ):
            env.step(np.zeros(6))
        operator.press(False)
        env.unwrapped.clear_estop()
        observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation["joints_position"], list(HOME.values()), atol=0.03)

    operator.press(True)
    assert f"not ready: button is active: {RELEASE}" in question(operator)

    path = tmp_path / "arm.yaml"
    path.write_text(dump_contract(arm()))
    options = ["--backend", "real", "--namespace", NAMESPACE, "--emulator", "--policy", "hold", "--episodes", "1"]
    main(["evaluate", str(path), *options, "--out", str(tmp_path / "runs")])
    shown = capsys.readouterr().err
    assert re.search(r"ended by safety_stop:estop.active: 1; button on topic button: pull the red button out", shown)


def question(operator):
    """Return what a reset with a confirmation by topic asks, and confirm it."""
    operator.receiver.subscribe("question", String, "environment/confirm_request", LATCHED)
    answer = operator.node.create_publisher(Bool, "environment/confirm", RELIABLE)
    with embodied_env.make(arm(confirm="topic"), backend="real", namespace=NAMESPACE) as env:
        thread = threading.Thread(target=env.reset)
        thread.start()
        found = ""
        while not found and thread.is_alive():
            found = "".join(arrival.message.data for arrival in operator.receiver.receive(0.1))
        while thread.is_alive():
            answer.publish(Bool(data=True))
            thread.join(0.05)
    return found
