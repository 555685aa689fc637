"""The checks of the robot are tested in test/ros/robot/test_preflight.py."""

import dataclasses
import json

import pytest
from forked_programs import forked_programs
from shipped_contracts import changed_contract, changed_text

import embodied_env
from embodied_env.cli.doctor_cli import examine
from embodied_env.cli.main import main
from embodied_env.ros.transport.fastdds import VARIABLES

ARM = embodied_env.load_contract("arm_reach")

IMPORTS = (
    "import sys, embodied_env.cli.doctor_cli, embodied_env.envs.embodied_env; from embodied_env.cli.main import main"
)
ABSENT = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ImportError(f"{{name}} is not here")

assert not set(sys.modules).intersection({missing!r})
sys.meta_path.insert(0, Absent())
sys.exit(main(["doctor", "arm_reach", "--backend", {backend!r}, "--json"]))
"""


@pytest.fixture(scope="module")
def without():
    """Return a function that returns the status and the checks by name without the modules `missing`."""
    with forked_programs(IMPORTS) as programs:

        def checks_without(missing, backend, **environment):
            done = programs.run(ABSENT.format(missing=missing, backend=backend), environment)
            assert done.stderr == ""
            return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}

        yield checks_without


def checks_of(contract, backend, **options):
    sections = examine(contract, backend, namespace="/", timeout_s=0.1, **options)
    return {check.name: check for section in sections.values() for check in section}


def with_profile(backend, profile):
    return dataclasses.replace(ARM, backends={**ARM.backends, backend: profile})


def test_doctor_without_failures_exits_0_with_a_line_per_check(capsys):
    assert main(["doctor", "arm_reach", "--backend", "fake"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and line[:4] not in ("pass", "  - ", "    ")] == [
        "this host", "contract", "world", lines[-1],
    ]  # fmt: skip
    assert any(line.startswith("pass  task") and line.endswith("reach") for line in lines)
    assert "checks passed, " in lines[-1]


def test_result_as_json(capsys):
    assert main(["doctor", "arm_reach", "--backend", "fake", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["contract"], found["backend"], found["passed"]) == ("arm_reach", "fake", True)
    assert set(found["checks"][0]) == {"section", "name", "passed", "detail", "remedy", "code"}
    assert "world" in [check["name"] for check in found["checks"]]


def test_failed_check_exits_1_with_remedy(tmp_path, capsys):
    file = tmp_path / "lonely.yaml"
    file.write_text(changed_text(ARM, {"backends": {"mujoco": {}}}))
    assert main(["doctor", str(file), "--backend", "fake"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  profile" in out
    assert "no profile backends.fake in the contract (found: mujoco)" in out
    assert "-> add backends.fake" in out
    assert "1 of " in out.splitlines()[-1]


def test_task_that_cannot_be_loaded_fails():
    broken = dataclasses.replace(ARM, task=dataclasses.replace(ARM.task, type="json:Gone"))
    check = _task_check(broken)
    assert (check.passed, check.code) == (False, "ContractError")
    assert "Gone" in check.detail


def _task_check(contract):
    from embodied_env.cli.doctor_cli import _attempt
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
def test_malformed_robot_profile_fails_its_check(wrong):
    checks = checks_of(with_profile("real", {**ARM.backends["real"], **wrong}), "real")
    assert (checks["profile"].passed, checks["robot"].passed) == (False, None)


def test_third_party_backend_is_not_checked():
    assert checks_of(with_profile("theirs", {}), "theirs")["world"].passed is None


def test_loadable_model_passes():
    pytest.importorskip("mujoco", reason="needs mujoco")
    checks = checks_of(ARM, "mujoco")
    assert (checks["model"].passed, checks["model"].detail) == (True, "arm6.xml loads and resets")


def test_missing_model_fails():
    pytest.importorskip("mujoco", reason="needs mujoco")
    checks = checks_of(with_profile("mujoco", {**ARM.backends["mujoco"], "model": "nowhere.xml"}), "mujoco")
    assert checks["model"].passed is False
    assert "nowhere.xml" in checks["model"].detail
    assert "renderer" not in checks


def test_missing_rclpy_has_remedy_and_robot_is_not_checked(without):
    status, checks = without(["rclpy"], "real", ROS_DISTRO="kilted")
    assert status == 1
    assert (checks["rclpy"]["passed"], checks["rclpy"]["code"]) == (False, "missing")
    assert checks["rclpy"]["detail"].endswith(
        'pip install "embodied_env[ros]", or apt install ros-kilted-rclpy and source its setup.bash'
    )
    assert checks["limits"]["passed"] is True
    assert (checks["robot"]["passed"], checks["robot"]["detail"]) == (None, "not checked because of: rclpy")


def test_backend_without_ros_passes_without_rclpy(without):
    status, checks = without(["rclpy"], "fake")
    assert status == 0
    assert "rclpy" not in checks


@pytest.mark.parametrize(
    ("module", "backend", "status", "remedy"),
    [
        ("mujoco", "mujoco", 1, 'pip install "embodied_env[sim]"'),
        ("mcap", "fake", 0, 'pip install "embodied_env[record]"'),  # optional
    ],
)
def test_missing_package_has_remedy(without, module, backend, status, remedy):
    found, checks = without([module], backend)
    assert (found, checks[module]["passed"], checks[module]["remedy"]) == (status, False if status else None, remedy)


def test_missing_message_package_has_remedy(without):
    pytest.importorskip("rclpy", reason="needs rclpy")
    status, checks = without(["geometry_msgs"], "mujoco_ros", ROS_DISTRO="jazzy")
    assert status == 1
    assert checks["geometry_msgs"]["passed"] is False
    assert checks["geometry_msgs"]["remedy"].startswith("apt install ros-jazzy-geometry-msgs, or pip install")
    assert checks["sensor_msgs"]["passed"] is True


def test_invalid_domain_id_fails(without):
    status, checks = without([], "mujoco_ros", ROS_DOMAIN_ID="999")
    assert status == 1
    assert "'999'" in checks["rclpy"]["detail"]


def test_required_security_without_keys_fails_before_node_creation():
    contract = with_profile("real", {"security": "required"})
    checks = checks_of(contract, "real")
    assert checks["security"].passed is False
    assert "security" in checks["robot"].detail or "rclpy" in checks["robot"].detail
    assert "sensors.joints" not in checks


def test_large_images_of_a_robot_are_reported_with_the_profile_for_their_publisher(monkeypatch):
    pytest.importorskip("rclpy", reason="needs ROS 2")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    image = {"unit": "1", "shape": [480, 640, 3], "low": 0.0, "high": 255.0}
    camera = {"topic": "camera", "type": "sensor_msgs/msg/Image", "encoding": "rgb8", "max_age_s": 1.0}
    contract = changed_contract(ARM, {"sensors.camera": {**camera, "fields": {"image": image}}})
    contract = dataclasses.replace(contract, backends={"real": {"security": "required"}})  # no node is created
    check = checks_of(contract, "real")["large messages"]
    assert check.passed is None
    assert check.detail.startswith("camera: messages of 0.9 MB do not fit")
    assert VARIABLES[0] in check.remedy


def test_missing_package_of_a_safety_input_is_named_with_its_alternatives(tmp_path, capsys):
    pytest.importorskip("rclpy", reason="needs ROS 2")
    absent = {"topic": "mode", "type": "no_such_msgs/msg/Mode", "path": "mode", "safe": [1], "latched": True}
    contract = with_profile("real", {"estop": {"mode": {**absent, "variant": {"type": "std_msgs/msg/UInt8"}}}})
    checks = checks_of(contract, "real")
    assert (checks["input mode"].passed, checks["profile"].passed) == (None, True)
    assert (
        "no_such_msgs/msg/Mode is not installed: read as its variant std_msgs/msg/UInt8" in checks["input mode"].detail
    )
    assert "apt install ros-jazzy-no-such-msgs" in checks["input mode"].remedy

    contract = with_profile("real", {"estop": {"mode": absent}})
    checks = checks_of(contract, "real")
    assert checks["profile"].passed is False
    assert 'ignore_inputs=["mode"] or --ignore-input mode' in checks["profile"].detail
    checks = checks_of(contract, "real", ignore_inputs=["mode"])
    assert checks["profile"].passed
    assert "ignored as requested" in checks["input mode"].detail
    assert "expected a list of inputs" in checks_of(contract, "real", ignore_inputs=["modes"])["profile"].detail
