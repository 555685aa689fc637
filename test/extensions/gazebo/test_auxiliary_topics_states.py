"""With `states` in a profile, entities publish their poses over real DDS, from which sources are computed."""

import contextlib
import dataclasses

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from small_simulator import SmallSimulator

import embodied_env

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("stepped_by_services")]

POSE = "geometry_msgs/msg/PoseStamped"
PROFILE = {
    "world": "arm_reach",
    "step_s": 0.05,
    "settle_steps": 1,
    "reset": "world",
    "states": {"hand": {"topic": "tcp_pose", "type": POSE}, "aim": {"topic": "target_pose", "type": POSE}},
    "sources": {"true_distance": {"distance": ["hand", "aim"]}},
    "sensor_grace_s": 0.3,
}


ARM = embodied_env.load_contract("arm_reach")
SEEN = dataclasses.replace(ARM.sensors["tcp"].fields["position"], unit="1")
WITH_TURNS = {
    name: dataclasses.replace(sensor, fields={**sensor.fields, "orientation": SEEN})
    if "pose" in sensor.topic
    else sensor
    for name, sensor in ARM.sensors.items()
}
CONTRACT = dataclasses.replace(ARM, sensors=WITH_TURNS, backends={"gazebo": PROFILE})


class PosePublisher(SmallSimulator):
    """The small simulator, with a rotation in its poses."""

    def _values(self, name):
        values = super()._values(name)
        return {**values, "orientation": np.array([0.0, 0.0, 0.0, 1.0])} if name in ("tcp", "target") else values


def test_a_source_is_computed_from_poses_at_the_end_of_the_step(domain_id):
    with contextlib.closing(PosePublisher(CONTRACT, domain_id)):
        env = embodied_env.make(CONTRACT, backend="gazebo", evaluator_info=True)
        env.reset(seed=1)
        for _ in range(3):
            env.step(np.zeros(6))
        sample = env.unwrapped.last_transition.snapshot.samples["true_distance"]
        env.close()
    np.testing.assert_allclose(sample.values["range"], 0.3 * np.sqrt(3.0), rtol=1e-6)


def test_a_silent_entity_ends_the_episode_with_its_topic(domain_id):
    with contextlib.closing(PosePublisher(CONTRACT, domain_id)) as simulator:
        env = embodied_env.make(CONTRACT, backend="gazebo")
        env.reset(seed=1)
        simulator.faults.drops = {"target"}
        _, _, terminated, truncated, info = env.step(np.zeros(6))
        env.close()
    assert (terminated, truncated) == (False, True)
    assert info["end_reason"] == "backend_lost:sensor_late"
