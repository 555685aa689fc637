"""Tasks, which compute reward and verdict from snapshots (`embodied_env.tasks.task`)."""

from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.tasks.loading import describe_task, find_task, is_shipped, load_task
from embodied_env.tasks.task import ResettableTask, ScriptedTask, Task
from embodied_env.tasks.task_parts import ArrayTask, components, is_fresh

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
