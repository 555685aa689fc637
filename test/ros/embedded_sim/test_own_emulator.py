from dataclasses import replace

import psutil
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import UsageError
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.embedded_sim import own_emulator
from embodied_env.ros.embedded_sim.own_emulator import absolute_names, emulator_namespace

pytestmark = [pytest.mark.ros, pytest.mark.realtime, pytest.mark.usefixtures("domain_id")]

ARM = embodied_env.load_contract("arm_reach")


def emulators():
    """Return the simulators that this process has started."""
    return [each.pid for each in psutil.Process().children() if "sim" in each.cmdline()]


def test_an_emulator_is_started_in_a_namespace_of_its_own_and_ended():
    with emulator_namespace(ARM, None, search_s=0.0) as namespace:
        assert namespace.startswith("/embodied_env_")
        assert len(emulators()) == 1
        with embodied_env.make(ARM, backend="real", emulator=True, namespace=namespace, connect_timeout_s=60.0) as env:
            assert env.reset(seed=3)[1]["reset"]["level"] == "world"
    assert not emulators()


def test_a_running_emulator_is_used_also_if_it_is_discovered_after_the_search(monkeypatch):
    running = Child(simulator("-", namespace="/cell", free_running=True), first_line=dump_contract(ARM))
    try:
        with emulator_namespace(ARM, "/cell", search_s=60.0) as namespace:
            assert namespace == "/cell"
            assert emulators() == [running.pid]
        other = simulator("-", namespace="/other", free_running=True)  # never in the namespace of its own
        monkeypatch.setattr(own_emulator, "simulator", lambda *_, **__: other)
        with emulator_namespace(ARM, "/cell", search_s=0.0) as namespace:
            assert namespace == "/cell"
            assert emulators() == [running.pid]
    finally:
        running.stop()


def test_no_emulator_is_started_for_a_contract_with_absolute_names():
    arm = replace(ARM.actuators["arm"], topic="/arm/commands")
    contract = replace(ARM, actuators={**ARM.actuators, "arm": arm})
    assert absolute_names(contract) == ["/arm/commands"]
    expected = r"no emulator in /robot .*/arm/commands is an absolute name"
    with pytest.raises(UsageError, match=expected), emulator_namespace(contract, "/robot", search_s=0.0):
        pass
    assert not emulators()


@pytest.mark.parametrize(
    ("backend", "changes", "names"),
    [
        ("real", {"active": {"arm": {"controller": "arm"}}}, ["/controller_manager/list_controllers"]),
        ("mujoco", {"model": "/models/arm.xml"}, []),
    ],
    ids=["the manager of a controller by default", "no file of a model"],
)
def test_absolute_names_are_those_that_the_emulator_offers(backend, changes, names):
    profile = {**ARM.backends[backend], **changes}
    assert absolute_names(replace(ARM, backends={**ARM.backends, backend: profile})) == names


def test_an_invalid_namespace_is_refused():
    with pytest.raises(UsageError, match="invalid namespace 'robot'"), emulator_namespace(ARM, "robot"):
        pass
