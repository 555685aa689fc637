"""The tutorial on a world of the reader's, with stand-ins of the servers behind the drafted bridge, over real DDS."""

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from pages import run_blocks, text_of

pytestmark = [pytest.mark.ros, pytest.mark.needs("contract_init", "vector", "evaluation", "audit")]


@pytest.mark.tutorial
@pytest.mark.parametrize("gazebo_programs", ["drafted"], indirect=True)
def test_the_policy_of_the_tutorial_improves_on_servers_of_its_world(gazebo_programs, domain_id, tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    printed = run_blocks(text_of("tutorials/your_gazebo_world").replace("train.py 6", "train.py 3"), folder)
    assert "servers started [1, 1]" in printed


@pytest.mark.gazebo
def test_the_policy_of_the_tutorial_improves_in_gazebo(domain_id, tmp_path):
    run_blocks(text_of("tutorials/your_gazebo_world"), tmp_path)
