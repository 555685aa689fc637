import importlib.util
import sys

import pytest

from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.messages.message_types import message_class


@pytest.mark.parametrize(
    "name", ["", "Bool", "std_msgs/Bool", "std_msgs/msg/Bool/x", "std_msgs/msg/", "a.b/msg/C", "/msg/C"]
)
def test_invalid_type_name_is_rejected(name):
    with pytest.raises(ContractError, match="expected <package>/msg/<Type>"):
        message_class(name)


def test_type_name_imports_no_module_without_messages(tmp_path, monkeypatch):
    (tmp_path / "named_by_a_contract").mkdir()
    (tmp_path / "named_by_a_contract" / "code.py").write_text("Type = int\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ContractError):
        message_class("named_by_a_contract/code/Type")
    assert "named_by_a_contract" not in sys.modules


def test_missing_interfaces_of_the_runner_are_built_not_installed():
    if importlib.util.find_spec("embodied_env_interfaces") is not None:
        pytest.skip("the interfaces are installed")
    with pytest.raises(MissingDependencyError, match="build the folder interfaces") as raised:
        message_class("embodied_env_interfaces/action/RunPolicy")
    assert "apt install" not in str(raised.value)


@pytest.mark.ros
@pytest.mark.parametrize(
    ("name", "error", "problem"),
    [
        ("sensor_msgs/msg/Nonsense", ContractError, r"Nonsense.*package sensor_msgs"),
        ("std_srvs/msg/Trigger", ContractError, r"Trigger.*package std_srvs"),  # it has services only
        ("no_such_msgs/msg/Thing", MissingDependencyError, "no_such_msgs"),
    ],
)
def test_missing_type_is_reported_with_its_package(name, error, problem):
    pytest.importorskip("rclpy", reason="needs rclpy")
    assert message_class("sensor_msgs/msg/Joy").__name__ == "Joy"
    with pytest.raises(error, match=problem):
        message_class(name)
