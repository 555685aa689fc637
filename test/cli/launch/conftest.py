"""The ROS packages and the world that the launch target ``gazebo`` needs."""

import pytest
from shipped_contracts import changed_text


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Programs of the ROS packages that Gazebo needs, and a world next to a readable contract."""
    for package, program in (
        ("ros_gz_bridge", "parameter_bridge"),
        ("robot_state_publisher", "robot_state_publisher"),
        ("controller_manager", "spawner"),
    ):
        file = tmp_path / "lib" / package / program
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    worlds = tmp_path / "config" / "gazebo"
    worlds.mkdir(parents=True)
    contract = tmp_path / "config" / "arm.yaml"
    contract.write_text(changed_text("arm_reach"))
    for name in ("arm.sdf", "arm.bridge.yaml"):
        (worlds / name).write_text("")
    return contract
