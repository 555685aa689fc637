"""Tasks compute reward and verdict from snapshots. To write one, see `embodied_env.tasks.base`."""

from embodied_env.core.batches import TaskResultBatch
from embodied_env.core.types import Snapshot
from embodied_env.tasks.base import BatchedTask, ResettableTask, ScriptedTask, Task
from embodied_env.tasks.common import ArrayTask, is_fresh
from embodied_env.tasks.loading import describe_task, is_shipped, load_task

__all__ = [
    "ArrayTask",
    "BatchedTask",
    "ResettableTask",
    "ScriptedTask",
    "Snapshot",
    "Task",
    "TaskResultBatch",
    "describe_task",
    "is_fresh",
    "is_shipped",
    "load_task",
]
