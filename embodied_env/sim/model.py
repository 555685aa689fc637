"""A compiled MuJoCo model, and the indices of the objects that a contract names."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.files import MOST_DATA_BYTES, check_file
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.sim.backend_profile import WorldProfile
from embodied_env.sim.generated_model import generate_model

SHIPPED = Path(__file__).parent / "models"

_KINDS = {  # kind of object -> its MuJoCo type and the attribute with its number
    "site": ("mjOBJ_SITE", "nsite"),
    "joint": ("mjOBJ_JOINT", "njnt"),
    "actuator": ("mjOBJ_ACTUATOR", "nu"),
    "body": ("mjOBJ_BODY", "nbody"),
    "keyframe": ("mjOBJ_KEY", "nkey"),
    "geom": ("mjOBJ_GEOM", "ngeom"),
    "camera": ("mjOBJ_CAMERA", "ncam"),
    "sensor": ("mjOBJ_SENSOR", "nsensor"),
}

_log = logging.getLogger(__name__)

MjData = Any  # mujoco has no type stubs


def import_mujoco() -> Any:  # noqa: ANN401 - mujoco has no type stubs
    """Return the module `mujoco`, which then logs its warnings instead of writing MUJOCO_LOG.TXT.

    An invalid MUJOCO_GL is reported when an image is rendered, not here. Raises MissingDependencyError if `mujoco` is
    not installed.
    """
    try:
        try:
            mujoco: Any = importlib.import_module("mujoco")
        except (AttributeError, RuntimeError):
            setting = os.environ["MUJOCO_GL"]
            os.environ["MUJOCO_GL"] = "disable"
            try:
                mujoco = importlib.import_module("mujoco")
            finally:
                os.environ["MUJOCO_GL"] = setting
    except ImportError:
        raise MissingDependencyError(
            "mujoco", needed_for="the embedded simulator", remedy='pip install "embodied_env[sim]"'
        ) from None
    mujoco.set_mju_user_warning(_log.warning)
    return mujoco


class Model:
    """The compiled model of a profile. Unknown names raise ContractError.

    Attributes:
        contract: the contract.
        profile: the profile.
        mujoco: the module.
        mj: the ``MjModel``.
        path: the path of the profile in the contract.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, path: str) -> None:
        """Compile the model file, or a generated model; raises ContractError without the file or its keyframe."""
        self.contract, self.profile, self.path = contract, profile, path
        self.mujoco = import_mujoco()
        file = None if profile.model is None else find_model(contract, profile.model, f"{path}.model")
        self._name = "the generated model" if file is None else file.name
        compile_model = self.mujoco.MjModel
        try:
            if file is None:
                self.mj = compile_model.from_xml_string(generate_model(contract, profile))
            else:
                self.mj = compile_model.from_xml_path(str(file))
        except ValueError as error:
            raise self.error(f"{path}.model", f"cannot compile the MuJoCo model {self._name!r}: {error}") from None
        self._keyframe = None
        if profile.keyframe is not None:
            self._keyframe = self.find("keyframe", profile.keyframe, f"{path}.keyframe")

    def error(self, path: str, problem: str) -> ContractError:
        """Return the error for a key of this contract."""
        return ContractError(path, problem, source=self.contract.source)

    def require(self, holds: bool, path: str, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Raise ContractError for a key of this contract unless it `holds`."""
        if not holds:
            raise self.error(path, problem)

    def find(self, kind: str, name: str, path: str) -> int:
        """Return the index of the `kind` called `name`; raises ContractError at `path` with the known names."""
        type_name, count = _KINDS[kind]
        object_type = getattr(self.mujoco.mjtObj, type_name)
        index = int(self.mujoco.mj_name2id(self.mj, object_type, name))
        if index < 0:
            names = (self.mujoco.mj_id2name(self.mj, object_type, i) for i in range(getattr(self.mj, count)))
            raise self.error(path, f"no such {kind} in {self._name}: {one_of(name, filter(None, names))}")
        return index

    def joint_addresses(self, joints: Iterable[tuple[str, str]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the indices in ``qpos`` and ``qvel`` of hinge and slide joints, given by name and YAML path."""
        indices = []
        scalar = (int(self.mujoco.mjtJoint.mjJNT_HINGE), int(self.mujoco.mjtJoint.mjJNT_SLIDE))
        for name, path in joints:
            index = self.find("joint", name, path)
            problem = f"wrong type of the joint {name!r} (expected a hinge or slide joint)"
            self.require(self.mj.jnt_type[index] in scalar, path, problem)
            indices.append(index)
        return self.mj.jnt_qposadr[indices].astype(np.intp), self.mj.jnt_dofadr[indices].astype(np.intp)

    def servo(self, joint: str, path: str, *, velocity: bool) -> int:
        """Return the index of the position or velocity servo that drives `joint` and has its name."""
        index = self.find("actuator", joint, path)
        self.joint_addresses([(joint, path)])
        kind, target = self.mj.actuator_trntype[index], self.mj.actuator_trnid[index, 0]
        drives = kind == int(self.mujoco.mjtTrn.mjTRN_JOINT) and target == self.find("joint", joint, path)
        self.require(drives, path, f"the actuator {joint!r} in {self._name} does not drive the joint {joint!r}")
        gain, (stiffness, damping) = self.mj.actuator_gainprm[index, 0], 0.0 - self.mj.actuator_biasprm[index, 1:3]
        strength = damping if velocity else stiffness  # a servo's force: strength * (control - measured) - ...
        integrates = self.mj.actuator_dyntype[index] == int(self.mujoco.mjtDyn.mjDYN_INTEGRATOR)
        gear = self.mj.actuator_gear[index, 0]
        if not gain == strength > 0 or (velocity and stiffness != 0) or integrates or gear != 1:
            found = f"gain {gain:g}, stiffness {stiffness:g}, damping {damping:g}, gear {gear:g}"
            found += ", dyntype integrator" if integrates else ""
            wanted = f"a {'velocity' if velocity else 'position'} servo"
            raise self.error(path, f"wrong actuator {joint!r} in {self._name}: {found} (expected {wanted})")
        return index

    def free_joint(self, joint: str, path: str) -> int:
        """Return the index of a free joint's position in ``qpos``."""
        index = self.find("joint", joint, path)
        is_free = self.mj.jnt_type[index] == int(self.mujoco.mjtJoint.mjJNT_FREE)
        self.require(is_free, path, f"wrong type of the joint {joint!r} in {self._name} (expected a free joint)")
        return int(self.mj.jnt_qposadr[index])

    def mocap(self, body: str, path: str) -> int:
        """Return the mocap index of `body`."""
        index = int(self.mj.body_mocapid[self.find("body", body, path)])
        self.require(index >= 0, path, f"wrong body {body!r} in {self._name} (expected a mocap body)")
        return index

    def new_data(self) -> MjData:
        """Return a new state of the model, at the keyframe."""
        data = self.mujoco.MjData(self.mj)
        self.reset(data)
        return data

    def reset(self, data: MjData) -> None:
        """Reset `data` to the keyframe and clear everything else: warm starts, warnings, forces."""
        if self._keyframe is None:
            self.mujoco.mj_resetData(self.mj, data)
        else:
            self.mujoco.mj_resetDataKeyframe(self.mj, data, self._keyframe)


def find_model(contract: Contract, name: str, path: str) -> Path:
    """Return the file of a model, a shipped one if the contract is untrusted; raises ContractError at `path`."""
    shipped = {file.name: file for file in SHIPPED.glob("*.xml")}
    try:
        is_local = contract.trusted and os.path.lexists(contract.resolve_path(name))
        file = shipped[name] if name in shipped and not is_local else contract.resolve_path(name)
        check_file(file, most_bytes=MOST_DATA_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        known = ", ".join(sorted(shipped))
        problem = f"cannot read {name!r}: {error} (expected a path to a file, or one of: {known})"
        raise ContractError(path, problem, source=contract.source) from None
    return file
