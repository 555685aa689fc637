"""The safety gate: pure limits, the gate chain, the arbiter of the last published command, the watchdog."""

from embodied_env.core.types import CommandState
from embodied_env.safety.approved_commands import concatenate_commands, merge_relay_report
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.command_filters import CommandFilter
from embodied_env.safety.findings import GATES
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.watchdog import SetpointThread, Watchdog, WatchdogThread

__all__ = [
    "GATES",
    "Arbiter",
    "CommandFilter",
    "CommandState",
    "SafetyGate",
    "SetpointThread",
    "Watchdog",
    "WatchdogThread",
    "concatenate_commands",
    "merge_relay_report",
]
