"""The page about behaviour trees runs as it is printed, with the example as the client."""

from pathlib import Path

import pytest
from pages import run_blocks, text_of

pytest.importorskip("rclpy", reason="needs rclpy")


@pytest.mark.ros
@pytest.mark.tutorial
def test_blocks_of_the_behaviour_tree_page_run(message_package, tmp_path, monkeypatch, domain_id):
    message_package("embodied_env_interfaces")
    import embodied_env_interfaces

    generated = str(Path(embodied_env_interfaces.__path__[0]).parent)
    monkeypatch.setenv("PYTHONPATH", generated)
    printed = run_blocks(text_of("howto/behavior_tree"), tmp_path)
    assert '"verdict": "success"' in printed
    assert "the tree ended with success" in printed
