"""What sensors read in a simulated world: a function for each field, made once from the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.messages import JOINT_SENSOR
from embodied_env.contract.rules import one_of
from embodied_env.contract.spaces import FieldLayout, field_layouts
from embodied_env.sim.model import MjData, Model
from embodied_env.sim.profile import Source, WorldProfile

Reader = Callable[[], Any]
Values = dict[str, NDArray[Any]]

_NEEDS = {  # message type -> the key of its source
    JOINT_SENSOR: "",
    "geometry_msgs/msg/PoseStamped": "site",
    "geometry_msgs/msg/PointStamped": "site",
    "sensor_msgs/msg/Range": "distance",
}


class Senses:
    """Reads the sensors of a contract from one MuJoCo state."""

    def __init__(self, contract: Contract, profile: WorldProfile, model: Model, data: MjData) -> None:
        """Resolve every field.

        Raises:
            ContractError: for a sensor without a source, a source that does not fit or has no sensor, an unknown name.
        """
        self._model = model
        self._data = data
        for name in profile.sources:
            if name not in contract.sensors:
                raise model.error(f"{model.path}.sources.{name}", f"no such sensor: {one_of(name, contract.sensors)}")
        self._fields: dict[str, list[tuple[FieldLayout, Reader]]] = {}
        for name, spec in contract.sensors.items():
            readers = self._readers(name, spec, profile.sources.get(name, Source()))
            self._fields[name] = [(layout, readers[layout.field]) for layout in field_layouts(name, spec)]

    def read(self, sensor: str) -> Values:
        """Return the fields of `sensor` as they are now: fresh arrays, in the contract's shapes and precision."""
        return {
            layout.field: np.array(reader(), dtype=layout.dtype).reshape(layout.shape)
            for layout, reader in self._fields[sensor]
        }

    def _readers(self, name: str, spec: SensorSpec, source: Source) -> dict[str, Reader]:
        path = f"{self._model.path}.sources.{name}"
        if spec.type not in _NEEDS:
            raise self._model.error(f"sensors.{name}.type", f"this world cannot sense it: {one_of(spec.type, _NEEDS)}")
        needed = _NEEDS[spec.type]
        given = " and ".join(key for key in ("site", "distance") if getattr(source, key) is not None)
        if given != needed:
            wanted = needed or "no source, since it is read by the names of its joints"
            raise self._model.error(path, f"{given or 'nothing'} is given; a {spec.type} sensor needs {wanted}")
        if source.site is not None:
            return self._pose(source.site, f"{path}.site")
        if source.distance is not None:
            return self._distance(source.distance, f"{path}.distance")
        return self._joints(name, spec)

    def _joints(self, name: str, spec: SensorSpec) -> dict[str, Reader]:
        data = self._data
        readers: dict[str, Reader] = {}
        for field, field_spec in spec.fields.items():
            path = f"sensors.{name}.fields.{field}.joints"
            at = self._model.joint_addresses((joint, path) for joint in field_spec.joints or ())
            vector, index = {
                "position": (data.qpos, at.qpos),
                "velocity": (data.qvel, at.dof),
                "effort": (data.qfrc_actuator, at.dof),  # of the servos: what gravcomp carries is not in it
            }[field]
            readers[field] = partial(np.take, vector, index)
        return readers

    def _pose(self, site: str, path: str) -> dict[str, Reader]:
        data, model = self._data, self._model
        index = model.find("site", site, path)

        def orientation() -> NDArray[np.float64]:
            wxyz = np.empty(4)
            model.mujoco.mju_mat2Quat(wxyz, data.site_xmat[index])
            return np.roll(wxyz, -1)  # a message has x, y, z, w

        return {"position": lambda: data.site_xpos[index], "orientation": orientation}

    def _distance(self, sites: tuple[str, str], path: str) -> dict[str, Reader]:
        data = self._data
        a, b = (self._model.find("site", site, f"{path}[{i}]") for i, site in enumerate(sites))
        return {"range": lambda: np.linalg.norm(data.site_xpos[a] - data.site_xpos[b])}
