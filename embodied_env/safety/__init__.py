"""The safety gate: pure limits, the gate chain, the arbiter of the last published command, the watchdog."""

from embodied_env.core.types import Reference
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.command_filters import Shaper
from embodied_env.safety.command_limiter import joined, merged
from embodied_env.safety.findings import GATES
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.watchdog import Watchdog, WatchdogThread

__all__ = ["GATES", "Arbiter", "Reference", "SafetyGate", "Shaper", "Watchdog", "WatchdogThread", "joined", "merged"]
