"""Tasks: reward and verdict, judged from snapshots. How to write one: `embodied_env.tasks.base`."""

from embodied_env.tasks.base import Policy, ScriptedTask, Task, load_task

__all__ = ["Policy", "ScriptedTask", "Task", "load_task"]
