"""Fit of the arm FILE.npz FILE.xml with `mujoco.sysid`, as a program for an environment that has it."""

import json
import sys

import numpy as np


def main(data_file: str, model_file: str) -> None:
    """Print the values of gain, damping and mass, and the half widths of their intervals."""
    import mujoco
    from mujoco import sysid

    data, spec = np.load(data_file), mujoco.MjSpec.from_file(model_file)
    for joint in ("j1", "j2"):
        kinds = {"type": mujoco.mjtSensor.mjSENS_JOINTPOS, "objtype": mujoco.mjtObj.mjOBJ_JOINT}
        spec.add_sensor(name=joint, objname=joint, **kinds)
    model, params = spec.compile(), sysid.ParameterDict()
    modifiers = {
        ("gain", 60.0): lambda s, p: sysid.apply_pgain(s, "j1", p.value[0]),
        ("damping", 4.0): lambda s, p: s.joint("j1").damping.__setitem__(0, p.value[0]),
        ("mass", 0.5): lambda s, p: setattr(s.geom("lower"), "mass", p.value[0]),
    }
    for (name, value), modifier in modifiers.items():
        params.add(sysid.Parameter(name, value, 0.1 * value, 10.0 * value, modifier=modifier))
    start = sysid.create_initial_state(model, np.zeros(2), np.zeros(2), np.zeros(0))
    controls = sysid.TimeSeries(data["control_s"], data["controls"])
    readings = sysid.TimeSeries.from_names(data["read_s"], data["readings"], model)
    sequences = sysid.ModelSequences("arm", spec, "run", start, controls, readings)
    residual = sysid.build_residual_fn(models_sequences=[sequences])
    found, result = sysid.optimize(initial_params=params, residual_fn=residual, optimizer="mujoco", verbose=False)
    _, half = sysid.calculate_intervals(residual(result.x, found)[0], result.jac)
    print(json.dumps({"values": np.ravel(result.x).tolist(), "half": np.ravel(half).tolist()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
