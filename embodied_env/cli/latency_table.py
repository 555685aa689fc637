"""The table of a latency profile: every estimate with its interval and method."""

from __future__ import annotations

from pathlib import Path

from embodied_env.core.latency.profile import LatencyProfile
from embodied_env.core.terminal import make_console


def print_profile(profile: LatencyProfile, out: Path) -> None:
    """Print every estimate with its interval and method, and what is unknown."""
    from rich.table import Table

    console = make_console()
    table = Table(title=f"{profile.contract} on {profile.backend}: latency, ms", title_justify="left")
    for heading, justify in (("", "left"), ("value", "right"), ("95 %", "right"), ("method", "left"), ("n", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type] # its own literals
    table.add_column("", overflow="fold")
    best = "" if profile.actuation_s is None else profile.actuation_s.method
    rows = [(f"actuation{' *' if method == best else ''}", each) for method, each in profile.evidence.items()]
    rows += [] if profile.lag_s is None else [("lag", profile.lag_s)]
    rows += [] if profile.obs_to_command_s is None else [("observation to command", profile.obs_to_command_s)]
    rows += [(f"age {sensor}", each) for sensor, each in profile.age_s.items()]
    rows += [(f"capture {sensor}", each) for sensor, each in profile.capture_s.items()]
    rows += [(f"transport {sensor}", each) for sensor, each in profile.transport_s.items()]
    for name, each in rows:
        interval = f"{1e3 * each.low_s:.2f} .. {1e3 * each.high_s:.2f}"
        table.add_row(name, f"{1e3 * each.value_s:.2f}", interval, each.method, str(each.n), each.detail)
    for name, why in profile.unknown.items():
        table.add_row(name, "unknown", "", "", "", why)
    console.print(table)
    console.print("* actuation_s: from the publication of a command until the joint begins to act")
    console.print(f"profile  {out}", soft_wrap=True)
