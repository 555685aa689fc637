"""Each defect of an installation fails its check, with a remedy."""

import json
import os
import sys
from pathlib import Path

import pytest

from embodied_env.cli import installation_checks as installation
from embodied_env.cli.installation_checks import examine_installation
from embodied_env.cli.main import main
from embodied_env.errors import MissingDependencyError
from embodied_env.ros.transport import ros_installation
from embodied_env.ros.transport.ros_installation import launch_checks, ros_checks


@pytest.fixture(autouse=True)
def unsourced(monkeypatch):
    """Remove the variables of a sourced ROS 2."""
    for name in ("AMENT_PREFIX_PATH", "PYTHONPATH", "RMW_IMPLEMENTATION"):
        monkeypatch.delenv(name, raising=False)


def named(checks):
    return {check.name: check for check in checks}


def section(title):
    return named(examine_installation()[title])


@pytest.fixture
def sourced(tmp_path, monkeypatch):
    """Return the prefix of a sourced ROS 2."""
    (tmp_path / "share" / "rclpy").mkdir(parents=True)
    (tmp_path / "share" / "rclpy" / "package.xml").touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    return tmp_path


def test_this_installation_passes(capsys):
    assert main(["doctor", "--install", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["installation"], found["passed"]) == (sys.prefix, True)
    passed = {check["name"] for check in found["checks"] if check["passed"]}
    assert passed >= {"python", "embodied_env", "gymnasium", "numpy", "pydantic", "contracts"}


@pytest.mark.parametrize("arguments", [["arm_reach", "--install"], ["--install", "--backend", "fake"], []])
def test_contract_and_installation_are_exclusive(arguments, capsys):
    assert main(["doctor", *arguments]) == 2
    assert "--install" in capsys.readouterr().err


def test_packages_of_another_python_on_the_path_fail(monkeypatch):
    ours = f"/opt/ros/x/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([ours, "/home/me/src", "/opt/ros/jazzy/lib/python3.9/site-packages"])
    )
    check = section("interpreter")["PYTHONPATH"]
    assert (check.passed, check.code) == (False, "python.other")
    assert "/opt/ros/jazzy" in check.detail
    assert ours not in check.detail


def test_requirement_that_is_too_old_fails(monkeypatch):
    monkeypatch.setattr(installation, "version", {"pydantic": "1.10.14", "numpy": "2.0.1"}.get)
    monkeypatch.setattr(installation, "_requirements", lambda _: [("pydantic", "2.7"), ("numpy", "1.26")])
    checks = section("package")
    assert (checks["pydantic"].passed, checks["pydantic"].detail) == (False, "1.10.14 (expected 2.7 or newer)")
    assert checks["pydantic"].remedy == 'pip install "pydantic>=2.7"'
    assert checks["numpy"].passed is True


def test_missing_extra_has_its_pip_line_and_fails_nothing(monkeypatch):
    monkeypatch.setattr(
        installation, "_requirements", lambda extra: [("no-such-package", "1.0")] if extra == "sim" else []
    )
    check = section("extras")["sim"]
    assert (check.passed, check.detail) == (None, "not installed: no-such-package")
    assert check.remedy == 'pip install "embodied_env[sim]"'


def test_wheels_in_a_shell_with_sourced_ros_fail(sourced, monkeypatch):
    rclpy = pytest.importorskip("rclpy", reason="needs rclpy")
    monkeypatch.setattr(ros_installation, "_folder_of_wheels", lambda: Path(rclpy.__file__).resolve().parents[1])
    check = named(ros_checks())["one ROS 2"]
    assert (check.passed, check.code) == (False, "ros.mixed")
    assert str(sourced) in check.detail


def test_wheels_under_another_name_of_their_prefix_are_not_mixed(tmp_path, monkeypatch):
    pytest.importorskip("rclpy", reason="needs rclpy")
    (tmp_path / "alias").symlink_to(sys.prefix)
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path / "alias"))
    assert "one ROS 2" not in named(ros_checks())


def test_wheels_hidden_by_an_rclpy_on_the_path_fail(tmp_path, monkeypatch):
    rclpy = pytest.importorskip("rclpy", reason="needs rclpy")
    monkeypatch.setattr(ros_installation, "_folder_of_wheels", lambda: tmp_path)
    checks = named(ros_checks())
    assert "wheels" not in checks["rclpy"].detail
    assert (checks["one ROS 2"].passed, checks["one ROS 2"].code) == (False, "ros.mixed")
    assert str(Path(rclpy.__file__).resolve().parents[1]) in checks["one ROS 2"].detail


def test_messages_built_with_another_numpy_fail(monkeypatch):
    pytest.importorskip("rclpy", reason="needs rclpy")

    def fail(_):
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr(ros_installation, "message_class", fail)
    check = named(ros_checks())["messages"]
    assert check.passed is False
    assert check.remedy.startswith('pip install "numpy<2"')


def test_missing_messages_are_named_with_their_package(monkeypatch):
    pytest.importorskip("rclpy", reason="needs rclpy")

    def fail(name):
        raise MissingDependencyError("sensor_msgs", needed_for=name, remedy="apt install ros-jazzy-sensor-msgs")

    monkeypatch.setattr(ros_installation, "message_class", fail)
    check = named(ros_checks())["messages"]
    assert (check.passed, check.code) == (False, "missing")
    assert "apt install ros-jazzy-sensor-msgs" in check.detail


def test_missing_contracts_fail_and_nothing_is_simulated(monkeypatch, capsys):
    monkeypatch.setattr(installation, "shipped_files", dict)
    assert main(["doctor", "--install", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["name"] for check in checks if check["passed"] is False] == ["contracts"]
    assert "simulator" not in {check["section"] for check in checks}


@pytest.mark.parametrize("is_sourced", [True, False])
def test_missing_rclpy_fails_only_with_sourced_ros(is_sourced, request, monkeypatch):
    if is_sourced:
        request.getfixturevalue("sourced")
    monkeypatch.setitem(sys.modules, "rclpy", None)
    (check,) = ros_checks()
    assert check.passed is (False if is_sourced else None)
    assert ("embodied_env[ros]" in check.detail + check.remedy) is not is_sourced  # the wheels would not fit
    assert section("extras")["ros"].remedy == "" or not is_sourced


def test_package_outside_the_ament_index_fails_with_sourced_ros(sourced):
    check = named(launch_checks())["ament index"]
    assert check.passed is False
    index = sourced / "share" / "ament_index" / "resource_index" / "packages"
    index.mkdir(parents=True)
    (index / "embodied_env").touch()
    check = named(launch_checks())["ament index"]
    assert (check.passed, check.detail) == (True, str(sourced / "share" / "embodied_env"))


@pytest.mark.parametrize(
    ("interpreter", "passed"), [("/bin/false", None), (sys.executable, True), ("/no/python", None)]
)
def test_interpreter_of_ros2_without_the_package_is_reported(interpreter, passed, tmp_path, monkeypatch):
    ros2 = tmp_path / "ros2"
    ros2.write_text(f"#!{interpreter}\n")
    ros2.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = named(launch_checks())["ros2"]
    assert check.passed is passed
    assert (f"python3 {ros2} launch" in check.remedy) is (passed is None)
