"""Which joints the nodes of a robot declare for a command topic."""

import pytest

from embodied_env.core.controller_joints import controller_of, declared_joints

TOPIC = "/left/arm_controller/joint_trajectory"
ARM = {"joints": ["a", "b"]}


@pytest.mark.parametrize(
    ("parameters", "is_only", "found"),
    [
        ({"/left/arm_controller": ARM, "/driver": {"joints": ["x"]}}, True, (["a", "b"], "/left/arm_controller")),
        ({"/driver": {"arm_controller.joints": ["c"], "joints": ["x"]}}, False, (["c"], "/driver")),
        ({"/driver": ARM}, True, (["a", "b"], "/driver")),
        ({"/driver": ARM}, False, ([], "")),
        ({"/left/arm_controller": {"joints": []}, "/driver": {"joint": "a"}}, True, (["a"], "/driver")),
        ({"/other": ARM}, True, ([], "")),
        ({}, True, ([], "")),
    ],
    ids=["controller", "shared node", "only topic", "one of several topics", "one joint", "another node", "nothing"],
)
def test_a_node_declares_the_joints_of_a_topic(parameters, is_only, found):
    assert declared_joints(TOPIC, parameters, ["/driver"], is_only=is_only) == found


def test_a_topic_at_the_root_names_no_controller():
    assert controller_of("/commands") == ""
    assert declared_joints("/commands", {"": ARM}, [], is_only=True) == (["a", "b"], "")
