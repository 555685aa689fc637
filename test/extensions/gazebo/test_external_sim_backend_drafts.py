"""Drafts of SDF worlds, stepped on stand-ins that publish what the drafted configuration of the bridge has."""

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import drafted_stand_in
from own_worlds import OWN_WORLDS, write_world
from simulator_stand_ins import hosted

import embodied_env
from embodied_env.cli.main import main

pytestmark = [pytest.mark.ros, pytest.mark.needs("contract_init")]


def drafted(kind, folder):
    """Return the files of the draft of a world."""
    file = folder / "own.yaml"
    model = ["--model", "green"] if kind == "two_vehicles" else []
    assert main(["contract", "init", "--from-sdf", str(write_world(kind, folder)), *model, "-o", str(file)]) == 0
    return file, folder / "own.bridge.yaml"


@pytest.mark.parametrize("kind", OWN_WORLDS)
def test_the_draft_of_a_world_steps_on_a_server_behind_its_bridge(
    kind, tmp_path, domain_id, message_package, close_later
):
    message_package("ros_gz_interfaces")
    file, bridge = drafted(kind, tmp_path)
    with hosted("drafted", **drafted_stand_in.read_draft(file, bridge)) as server:
        env = close_later(embodied_env.make(file, backend="gazebo"))
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(5):
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            assert (terminated, truncated) == (False, False), info["end_reason"]
        assert server.commands >= 5
        assert server.clock_entry["gz_topic_name"] == f"/world/{kind}/clock"
