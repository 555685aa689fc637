"""Run code of a user or of another package, whose errors are errors of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_env.errors import EmbodiedEnvError, described
from embodied_env.processes.signals import Terminated


@contextmanager
def foreign_code(error_of: Callable[[str], EmbodiedEnvError]) -> Iterator[None]:
    """Raise `error_of` the description of any foreign error, `sys.exit` included; errors of ours pass."""
    try:
        yield
    except (EmbodiedEnvError, Terminated):
        raise
    except (Exception, SystemExit) as error:  # it may raise anything
        raise error_of(described(error)) from error
