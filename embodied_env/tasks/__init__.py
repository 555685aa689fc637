"""Tasks compute reward and verdict from snapshots. To write one, see `embodied_env.tasks.base`."""

from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.tasks.base import ResettableTask, ScriptedTask, Task
from embodied_env.tasks.common import ArrayTask, components, is_fresh
from embodied_env.tasks.loading import describe_task, find_task, is_shipped, load_task

__all__ = [
    "ArrayTask",
    "ResettableTask",
    "ScriptedTask",
    "Snapshot",
    "Task",
    "TaskResult",
    "Verdict",
    "components",
    "describe_task",
    "find_task",
    "is_fresh",
    "is_shipped",
    "load_task",
]
