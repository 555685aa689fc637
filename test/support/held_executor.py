"""Resources of an environment over ROS 2 in its process, in its child processes, and in the graph."""

import os

import psutil

from embodied_env.processes.child_process import segments_of

FLAT_KB = 2048
"""Resident memory that a process may have more: what its allocator keeps, and what was used for the first time."""


def held(env, *others):
    """Return the resources of each kind, of the own namespace's nodes, and of the pids `others`."""
    backend = env.unwrapped.stepper.backend
    node = (backend._connection.ros if hasattr(backend, "_connection") else backend._ros).node
    found = {"nodes": sum(ns.startswith(node.get_namespace()) for _, ns in node.get_node_names_and_namespaces())}
    for kind in ("subscriptions", "publishers", "clients", "services", "timers", "guards"):
        found[kind] = len(list(getattr(node, kind)))
    for name, pid in (("here", os.getpid()), *((f"other {number}", pid) for number, pid in enumerate(others))):
        process = psutil.Process(pid)
        found |= {
            f"threads {name}": process.num_threads(),
            f"files {name}": process.num_fds(),
            f"segments {name}": len(segments_of(pid)),
        }
    return found


def resident_kb(*others):
    """Return the resident memory of this process and others, kB."""
    return [psutil.Process(pid).memory_info().rss // 1024 for pid in (os.getpid(), *others)]


def grown_kb(before, after):
    """Return the growth of each process, kB."""
    return [now - then for then, now in zip(before, after, strict=True)]


def more(before, after):
    """Return the resources that have increased."""
    return {kind: (before[kind], count) for kind, count in after.items() if count > before[kind]}
