"""``embodied-env doctor --install`` checks the real-time limits of this user and our systemd units."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from embodied_env.ros.transport.checklist import Check

UNITS = "embodied-env-*"
_PROPERTIES = "Id,ActiveState,SubState,MainPID,NRestarts"
_REALTIME_KERNEL = Path("/sys/kernel/realtime")  # of PREEMPT_RT
_ANSWER_S = 5.0
_INSTALL = "docs/howto/service.md describes the units"


def service_checks() -> Iterator[Check]:
    """Yield checks of the active real-time settings and units, none of which is required."""
    yield _limit_check()
    has_kernel = _REALTIME_KERNEL.is_file() and _REALTIME_KERNEL.read_text(encoding="ascii").strip() == "1"
    detail = f"{os.uname().release} {'with' if has_kernel else 'without'} PREEMPT_RT"
    yield Check(name="kernel", passed=has_kernel or None, detail=detail)
    units = list(_unit_checks())
    yield from units or [Check(name="units", passed=None, detail=f"no {UNITS} is loaded", remedy=_INSTALL)]


def _limit_check() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if not limit and os.geteuid():
        remedy = "add '<user> - rtprio 80' to /etc/security/limits.conf, or use the units"
        return Check(name="real time", passed=None, detail="SCHED_FIFO is not permitted to this user", remedy=remedy)
    highest = limit if os.geteuid() else os.sched_get_priority_max(os.SCHED_FIFO)
    return Check(name="real time", passed=True, detail=f"SCHED_FIFO up to priority {highest}")


def _unit_checks() -> Iterator[Check]:
    """Yield the state of each loaded unit, and the scheduling of its process."""
    if (program := shutil.which("systemctl")) is None:
        return
    command = [program, "show", f"--property={_PROPERTIES}", UNITS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    for block in done.stdout.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        state = values.get("ActiveState", "unknown")
        detail = f"{state} ({values.get('SubState', '')}), {values.get('NRestarts', '0')} restarts"
        with suppress(OSError, ValueError):  # it has just ended
            pid = int(values.get("MainPID", "0"))
            if pid and os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO:
                detail += f", SCHED_FIFO {os.sched_getparam(pid).sched_priority}"
        is_failed = state == "failed"
        remedy = f"journalctl -u {values['Id']}" if is_failed else ""
        passed = True if state == "active" else False if is_failed else None
        yield Check(name=values["Id"], passed=passed, detail=detail, remedy=remedy, code="unit" if is_failed else "")
