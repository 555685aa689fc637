"""Tasks compute reward and verdict from snapshots. To write one, see `embodied_env.tasks.base`."""

from embodied_env.tasks.base import ResettableTask, ScriptedTask, Task, describe_task, is_shipped, load_task

__all__ = ["ResettableTask", "ScriptedTask", "Task", "describe_task", "is_shipped", "load_task"]
