"""However a program ends, what moves by itself is braked first: at exit, and on SIGTERM.

Ctrl-C needs nothing: it raises KeyboardInterrupt, and the interpreter comes by here on its way out. SIGTERM would end
the program at once, so it is made an exception too, unless there is a handler of its own. Against SIGKILL, or a program
that hangs, only another process helps: the relay, or the controller's own timeout.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from typing import NoReturn, Protocol

TERMINATED = 143


class Closable(Protocol):
    """Something that must be closed."""

    def close(self) -> None:
        """Bring it to rest and free it. Idempotent."""
        ...


_open: weakref.WeakSet[Closable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # they are the parent's to close


def close_at_exit(thing: Closable) -> None:
    """Close `thing` when the interpreter exits, if it still lives then."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(thing)


def exit_on_sigterm() -> None:
    """Let SIGTERM end this program like ``sys.exit(143)``, where nobody handles it yet."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def terminate(_number: int, _frame: object) -> NoReturn:
    """End like ``sys.exit(143)``: a handler of SIGTERM."""
    sys.exit(TERMINATED)


def _close_all() -> None:
    for thing in list(_open):
        thing.close()
