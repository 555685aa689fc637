"""The rules of the quality of service that a contract declares."""

from __future__ import annotations

from embodied_env.contract.checks import require
from embodied_env.contract.qos import PRESETS, Qos, QosSpec

MAX_DEPTH = 10_000  # messages; a queue that is longer hides that somebody is too slow


def check_qos(path: str, qos: Qos) -> None:
    """Check what a contract declares under ``qos``; raises ContractError."""
    if qos is None:
        return
    if not isinstance(qos, QosSpec):
        allowed = f"{', '.join(sorted(PRESETS))}, or a mapping of depth, reliability, durability"
        require(isinstance(qos, str) and qos in PRESETS, path, f"{qos!r} is not allowed; allowed: {allowed}")
        return
    is_whole = isinstance(qos.depth, int) and not isinstance(qos.depth, bool)
    allowed = f"a whole number of messages from 1 to {MAX_DEPTH}"
    require(
        is_whole and 1 <= qos.depth <= MAX_DEPTH, f"{path}.depth", f"{qos.depth!r} is not allowed; allowed: {allowed}"
    )
    for key, choices in (
        ("reliability", ("best_effort", "reliable")),
        ("durability", ("transient_local", "volatile")),
    ):
        value = getattr(qos, key)
        problem = f"{value!r} is not allowed; allowed: {', '.join(choices)}"
        require(value in choices, f"{path}.{key}", problem)
    keeps_all = qos.durability == "volatile" or qos.reliability == "reliable"
    require(
        keeps_all,
        f"{path}.reliability",
        "'best_effort' is not allowed with durability transient_local: the message that is kept might be lost; "
        "allowed: reliable",
    )
