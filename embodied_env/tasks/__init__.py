"""Tasks compute reward and verdict from snapshots. To write one, see `embodied_env.tasks.base`."""

from embodied_env.core.types import Snapshot
from embodied_env.tasks.base import BatchedTask, ResettableTask, ScriptedTask, Task
from embodied_env.tasks.common import is_fresh
from embodied_env.tasks.loading import describe_task, is_shipped, load_task

__all__ = [
    "BatchedTask",
    "ResettableTask",
    "ScriptedTask",
    "Snapshot",
    "Task",
    "describe_task",
    "is_fresh",
    "is_shipped",
    "load_task",
]
