"""A simulator in lockstep in a thread of the test, which starts in a tenth of the time of a process."""

import contextlib
import threading

import embodied_env
from embodied_env.ros.embedded_sim.lockstep_node import run_simulator
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile

NAMESPACE = "/hosted"


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
