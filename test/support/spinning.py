"""A ROS 2 node with a thread of its own that spins it."""

import threading

from rclpy.executors import SingleThreadedExecutor

from embodied_env.ros.transport.node import RosNode
from embodied_env.timing.clock import SteadyClock

PERIOD_S = 0.04


class Spinning:
    """A node and the thread that spins it, which `pause` stops between two callbacks."""

    def __init__(self, name: str, namespace: str, domain_id: int | None) -> None:
        self.ros = RosNode(name, namespace=namespace, clock=SteadyClock(), domain_id=domain_id)
        self.node = self.ros.node
        self.pause, self.is_paused, self._done = threading.Event(), threading.Event(), threading.Event()
        self._executor = SingleThreadedExecutor(context=self.node.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            if self.pause.is_set():
                self.is_paused.set()
                self._done.wait(PERIOD_S)
            else:
                self._executor.spin_once(timeout_sec=PERIOD_S)

    def release(self) -> None:
        """Destroy what the node does not destroy itself."""

    def close(self) -> None:
        if self._done.is_set():
            return
        self._done.set()
        self._thread.join()
        self.release()
        self._executor.shutdown()
        self.ros.close()
