"""Simulators in a thread of the test, which start in a tenth of the time of a process."""

import contextlib
import threading

import embodied_env
from embodied_env.ros.embedded_sim.lockstep_node import run_simulator
from embodied_env.ros.embedded_sim.realtime_node import run_free_running
from embodied_env.ros.transport.node import RosNode
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import SteadyClock

NAMESPACE = "/hosted"
PATIENCE_S = 60.0


@contextlib.contextmanager
def hosted_world(contract, world, namespace):
    """Host a free-running world, and leave once it is ready."""
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=run_free_running,
        args=(contract, world),
        kwargs={"namespace": namespace, "stop": stop, "on_ready": lambda _: ready.set()},
    )
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def hosted_simulator(contract, world_class=World, run=run_simulator, **options):
    """Yield an environment attached to the simulator, with the options of `make`."""
    stop, world = threading.Event(), world_class(contract, load_profile(contract, "mujoco_ros"))
    thread = threading.Thread(target=run, args=(contract, world), kwargs={"namespace": NAMESPACE, "stop": stop})
    thread.start()
    try:
        given = {"spawn": False, "namespace": NAMESPACE, "step_timeout_s": 60.0, **options}
        made = embodied_env.make(contract, backend="mujoco_ros", **given)
        with contextlib.closing(made) as env:
            yield env
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def foreign_node_of(env):
    """Yield a second node in the namespace of an environment's simulator."""
    node = env.unwrapped.stepper.backend._ros.node
    domain_id = node.context.get_domain_id()
    other = RosNode("foreign_node", namespace=node.get_namespace(), clock=SteadyClock(), domain_id=domain_id)
    with contextlib.closing(other):
        yield other
