"""Real-time scheduling of the stepping thread, for the lifetime of an environment."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.errors import UsageError


class Scheduling:
    """Sets ``SCHED_FIFO`` and the interpreter's thread switch interval, and restores both.

    ``SCHED_FIFO`` applies only to the thread that calls `begin`, not to threads and processes started by it. The switch
    interval applies to the whole interpreter.
    """

    def __init__(self, *, fifo_priority: int | None = None, switch_interval_s: float | None = None) -> None:
        """Validate the settings, which apply from `begin`, or raise UsageError.

        None leaves a setting unchanged.
        """
        if fifo_priority is not None:
            if not hasattr(os, "SCHED_FIFO") or not hasattr(os, "SCHED_RESET_ON_FORK"):
                raise UsageError(f"fifo_priority={fifo_priority!r} is not available on {sys.platform} (expected None)")
            low, high = os.sched_get_priority_min(os.SCHED_FIFO), os.sched_get_priority_max(os.SCHED_FIFO)
            if type(fifo_priority) is not int or not low <= fifo_priority <= high:
                raise UsageError(f"invalid fifo_priority={fifo_priority!r} (expected {low} to {high}, or None)")
        if switch_interval_s is not None:
            switch_interval_s = checked_seconds("switch_interval_s", switch_interval_s)
        self._fifo_priority = fifo_priority
        self._switch_interval_s = switch_interval_s
        self._thread: int | None = None  # native id of the changed thread
        self._before: tuple[int, int] | None = None  # its original policy and priority
        self._before_s: float | None = None

    def begin(self) -> None:
        """Apply the settings to the calling thread, instead of a previous one.

        Repeated calls have no effect. Raises UsageError, with the limit and the remedy, where the operating system does
        not permit it.
        """
        if self._fifo_priority is not None and self._thread != threading.get_native_id():
            self._restore_thread()
            before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
            try:
                os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(self._fifo_priority))
            except PermissionError:
                import resource  # noqa: PLC0415 - only on platforms with SCHED_FIFO

                priority, (limit, _) = self._fifo_priority, resource.getrlimit(resource.RLIMIT_RTPRIO)
                raise UsageError(
                    f"SCHED_FIFO not permitted: fifo_priority={priority} (expected at most {limit}, RLIMIT_RTPRIO); "
                    f"run 'ulimit -r {priority}', add '<user> - rtprio {priority}' to /etc/security/limits.conf, "
                    "or use docker run --cap-add SYS_NICE (the control group may also lack a real-time share)"
                ) from None
            self._thread, self._before = threading.get_native_id(), before
        if self._switch_interval_s is not None and self._before_s is None:
            self._before_s = sys.getswitchinterval()
            sys.setswitchinterval(self._switch_interval_s)

    def end(self) -> None:
        """Restore the settings before `begin`, from any thread (idempotent)."""
        self._restore_thread()
        if self._before_s is not None:
            sys.setswitchinterval(self._before_s)
            self._before_s = None

    def account(self) -> dict[str, Any]:
        """Return the requested and the effective value of each setting."""
        return {
            "fifo_priority": {"asked": self._fifo_priority, "in_force": self._effective_priority()},
            "switch_interval_s": {"asked": self._switch_interval_s, "in_force": sys.getswitchinterval()},
        }

    def _effective_priority(self) -> int | None:
        """Return the SCHED_FIFO priority, or None under another policy."""
        if not hasattr(os, "sched_getscheduler"):
            return None
        thread = self._thread or 0
        try:
            policy = os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
            return os.sched_getparam(thread).sched_priority if policy == os.SCHED_FIFO else None
        except ProcessLookupError:
            return None

    def _restore_thread(self) -> None:
        if self._thread is None or self._before is None:
            return
        policy, priority = self._before
        with suppress(ProcessLookupError):  # the thread has ended
            try:
                os.sched_setscheduler(self._thread, policy, os.sched_param(priority))
            except PermissionError:  # removing the flag needs CAP_SYS_NICE; other policies ignore it
                os.sched_setscheduler(self._thread, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
        self._thread = self._before = None
