"""The order of the gates, which the arrays of ``info["safety"]`` and of recorded rows have."""

from embodied_env.core.code_table import GATES

ORDER = (
    *("latch", "form", "estop", "clock", "observation", "action_age", "tracking", "force", "latency"),
    *("space_box", "mapping", "jerk", "joint_limits", "plugins", "workspace", "post_condition"),
    *("watchdog", "intervention", "relay"),
)
"""Gates that refuse an action, those that limit it, and those that are no part of the chain."""


def test_gates_are_in_the_order_of_the_chain():
    assert ORDER == GATES
