"""A compiled MuJoCo model, and the indices of the objects that a contract names."""

from __future__ import annotations

import copy
import ctypes
import importlib
import logging
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import MOST_DATA_BYTES, check_file
from embodied_env.contract.model_files import model_sha256
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.sim.generated_model import generate_model
from embodied_env.sim.identified_parameters import (
    CONSTANT_FIELDS,
    FIELDS,
    IdentifiedParameter,
    Kind,
    ModelParameter,
    UndeterminedParameter,
    load_identified,
    parameter_name,
)
from embodied_env.sim.servos import (
    actuators_of,
    add_site_servos,
    refusal,
    set_gains,
    set_site_gains,
    why_no_servo,
)
from embodied_env.sim.world_profile import Contact, WorldProfile

SHIPPED = Path(__file__).parent / "models"

_KINDS = {  # kind of object -> its MuJoCo type and the attribute with its number
    "site": ("mjOBJ_SITE", "nsite"),
    "joint": ("mjOBJ_JOINT", "njnt"),
    "actuator": ("mjOBJ_ACTUATOR", "nactuator"),
    "body": ("mjOBJ_BODY", "nbody"),
    "keyframe": ("mjOBJ_KEY", "nkey"),
    "geom": ("mjOBJ_GEOM", "ngeom"),
    "camera": ("mjOBJ_CAMERA", "ncam"),
    "sensor": ("mjOBJ_SENSOR", "nsensor"),
}

_SAME = 1e-4  # relative difference of a value from that of the model that was fitted
_STATISTICS = ("meaninertia", "meanmass", "meansize", "extent")  # a model may declare them

_log = logging.getLogger(__name__)

MjData = Any  # mujoco has no type stubs


def import_mujoco() -> Any:  # noqa: ANN401 - mujoco has no type stubs
    """Return the module `mujoco`, with warnings logged, or raise MissingDependencyError."""
    try:
        try:
            mujoco: Any = importlib.import_module("mujoco")
        except (AttributeError, RuntimeError, ctypes.ArgumentError):
            setting = os.environ["MUJOCO_GL"]
            os.environ["MUJOCO_GL"] = "disable"
            try:
                mujoco = importlib.import_module("mujoco")
            finally:
                os.environ["MUJOCO_GL"] = setting
        importlib.import_module("mujoco.rollout")
    except ImportError:
        raise MissingDependencyError("mujoco", needed_for="the embedded simulator") from None
    mujoco.set_mju_user_warning(_log.warning)
    return mujoco


class WorldModel:
    """Compiled model of a profile, in which unknown names raise ContractError.

    Attributes:
        contract: the contract.
        profile: the profile.
        mujoco: the module.
        mj: the ``MjModel``.
        path: the path of the profile in the contract.
        original: the model that this is a copy of, if it is one.
        identified: the parameters of the profile's ``identified``, whose values the model has.
        contact_counts: the place in ``sensordata`` of the numbers of contacts of a contact source: with anything, with
            itself, and with each geom that is ignored. A source whose body does not exist has none.
    """

    original: WorldModel | None = None

    def __init__(self, contract: Contract, profile: WorldProfile, path: str) -> None:
        """Compile a model file or generated model, or raise ContractError if it is unusable."""
        self.contract, self.profile, self.path = contract, profile, path
        self.mujoco = import_mujoco()
        self._scalar = (int(self.mujoco.mjtJoint.mjJNT_HINGE), int(self.mujoco.mjtJoint.mjJNT_SLIDE))
        file = None if profile.model is None else find_model(contract, profile.model, f"{path}.model")
        self._name = "the generated model" if file is None else file.name
        if file is not None:
            self._check_files(file)
        parse = self.mujoco.MjSpec
        contacts = dict.fromkeys(each.contact for each in profile.sources.values() if each.contact is not None)
        try:
            spec = parse.from_string(generate_model(contract, profile)) if file is None else parse.from_file(str(file))
            numbers = {each: self._count_contacts(spec, each) for each in contacts}
            for name, drive in profile.site_drives.items():
                if spec.site(drive.site) is not None:  # reported by `_set_site_gains`
                    add_site_servos(self.mujoco, spec, name, drive.site)
            self.mj = spec.compile()
        except ValueError as error:
            raise self.error(f"{path}.model", f"cannot compile the MuJoCo model {self._name!r}: {error}") from None
        self.contact_counts, end = dict[Contact, slice](), self.mj.nsensordata - sum(numbers.values())
        for contact, number in numbers.items():
            self.contact_counts[contact], end = slice(end, end + number), end + number
        timestep_s = float(self.mj.opt.timestep)
        self.require(timestep_s > 0, f"{path}.model", f"timestep {timestep_s} s in {self._name!r} (expected > 0)")
        self._keyframe = None
        if profile.keyframe is not None:
            self._keyframe = self.find("keyframe", profile.keyframe, f"{path}.keyframe")
        self._check_names()
        for joint, gains in profile.servo_gains.items():
            where = f"{path}.servo_gains.{joint}"
            if (reason := set_gains(self.mujoco, self.mj, self._actuator(joint, where), gains)) is not None:
                raise self.error(where, f"the actuator of {joint!r} in {self._name} cannot be a servo: {reason}")
        self._home, _ = self.joint_addresses((joint, f"{path}.home.{joint}") for joint in profile.home)
        self.identified = self._load_identified()
        self._home_positions = np.array([*profile.home.values()])
        self._check_start()
        self._set_site_gains()

    def _count_contacts(self, spec: Any, contact: Contact) -> int:  # noqa: ANN401 - mujoco has no type stubs
        """Add sensors that count a source's contacts, and return their number."""
        sensor, kinds, body = self.mujoco.mjtSensor.mjSENS_CONTACT, self.mujoco.mjtObj, contact.body
        if spec.body(body) is None:
            return 0
        geoms = [geom for name in dict.fromkeys(contact.ignore) if (geom := spec.geom(name)) is not None]
        ignored = [(kinds.mjOBJ_GEOM, geom.name) for geom in geoms if body not in _names_upwards(geom.parent)]
        partners = [(kinds.mjOBJ_UNKNOWN, ""), (kinds.mjOBJ_XBODY, body), *ignored]
        found = 1 << int(self.mujoco.mjtConDataField.mjCONDATA_FOUND)
        for kind, name in partners:
            added = spec.add_sensor(type=sensor, objtype=kinds.mjOBJ_XBODY, objname=body, reftype=kind, refname=name)
            added.intprm = [found, 0, 1]
        return len(partners)

    def _check_files(self, file: Path) -> None:
        """Raise ContractError for a model file that is unreadable or has changed."""
        declared = self.profile.model_sha256
        try:
            found = model_sha256(file)
        except OSError as error:
            raise self.error(f"{self.path}.model", f"cannot read the MuJoCo model {self._name!r}: {error}") from None
        problem = f"{declared!r} (expected {found}: {self._name} or one of its files has changed)"
        remedy = "load the contract again, or remove the key from it"
        self.require(declared in (None, found), f"{self.path}.model_sha256", f"{problem}; {remedy}")

    def _set_site_gains(self) -> None:
        """Set the gains of added servos, or raise ContractError for a site that cannot move."""
        data = self.new_data()
        self.mujoco.mj_forward(self.mj, data)
        for name, drive in self.profile.site_drives.items():
            path = f"{self.path}.site_drives.{name}.site"
            site = self.find("site", drive.site, path)
            if (axis := set_site_gains(self.mujoco, self.mj, data, name, site)) is not None:
                expected = "expected a body with a free joint, or with joints for its axes"
                raise self.error(path, f"the site {drive.site!r} of {self._name} cannot move along {axis} ({expected})")

    def error(self, path: str, problem: str) -> ContractError:
        """Return the error for a key of this contract."""
        return ContractError(path, problem, source=self.contract.source)

    def require(self, holds: bool, path: str, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Raise ContractError for a key of this contract unless it `holds`."""
        if not holds:
            raise self.error(path, problem)

    def find(self, kind: str, name: str, path: str, *, remedy: str = "") -> int:
        """Return the index of the `kind` called `name`, or raise ContractError at `path`."""
        type_name, count = _KINDS[kind]
        object_type = getattr(self.mujoco.mjtObj, type_name)
        index = int(self.mujoco.mj_name2id(self.mj, object_type, name))
        if index < 0:
            number = getattr(self.mj, count)
            names = (self.mujoco.mj_id2name(self.mj, object_type, i) for i in range(number))
            raise self.error(path, f"no such {kind} in {self._name}: {one_of(name, filter(None, names))}{remedy}")
        return index

    def _load_identified(self) -> tuple[IdentifiedParameter, ...]:
        named, path = self.profile.identified, f"{self.path}.identified"
        if named is None:
            return ()
        found = load_identified(self.contract, named.file, named.sha256, path)
        problem = f"intervals of a fit that does not explain the motion of {', '.join(found.unexplained)}"
        remedy = "fit more parameters or correct the model, or leave draw out"
        self.require(
            named.draw is None or not found.unexplained, f"{path}.draw", f"{problem} (expected one that does); {remedy}"
        )
        fitted: list[IdentifiedParameter | UndeterminedParameter] = [*found.parameters, *found.undetermined]
        for each in fitted:
            self._check_same_model(each, f"{path}.file")
        of_model = [each for each in found.parameters if each.kind in FIELDS]
        for each in of_model:
            self.parameter(each.kind, each.of, f"{path}.file").set(each.value)
        if any(not CONSTANT_FIELDS.isdisjoint(FIELDS[each.kind]) for each in of_model):
            self.update_constants(self.mujoco.MjData(self.mj))
        return found.parameters

    def _check_same_model(self, fitted: IdentifiedParameter | UndeterminedParameter, path: str) -> None:
        if fitted.kind not in FIELDS:
            return
        own, value = self.parameter(fitted.kind, fitted.of, path).value, fitted.model
        name = parameter_name(fitted.kind, fitted.of)
        problem = f"fitted to a model whose {name} is {value:g}, in {self._name} it is {own:g}"
        is_same = math.isclose(own, value, rel_tol=_SAME, abs_tol=_SAME)
        self.require(is_same, path, f"{problem} (expected the same model); identify it again")

    def parameter(self, kind: Kind, names: Iterable[str], path: str) -> ModelParameter:
        """Return the parameter of bodies or joints, or raise ContractError at `path`."""
        names = list(names)
        if kind == "mass":
            rows = [self.find("body", name, path) for name in names]
            massless = [name for name, row in zip(names, rows, strict=True) if not self.mj.body_mass[row]]
            self.require(not massless, path, f"bodies without mass in {self._name}: {massless} (expected none)")
        elif kind == "gain":
            driven = [each for each in self.contract.actuators.values() if each.is_velocity]
            are_velocities = {joint for actuator in driven for joint in actuator.joints}
            rows = [self.servo(name, path, velocity=name in are_velocities) for name in names]
        else:
            rows = self.joint_addresses((name, path) for name in names)[1].tolist()
        return ModelParameter(self.mj, kind, np.array(rows, dtype=np.intp))

    def update_constants(self, data: MjData) -> None:
        """Recompute what depends on masses and armatures, which overwrites `data`."""
        mujoco, mj = self.mujoco, self.mj
        before, center = {name: getattr(mj.stat, name) for name in _STATISTICS}, mj.stat.center.copy()
        mujoco.mj_resetData(mj, data)
        mujoco.mj_setConst(mj, data)
        for name, value in before.items():
            setattr(mj.stat, name, value)
        mj.stat.center[:] = center

    def joint_addresses(self, joints: Iterable[tuple[str, str]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the ``qpos`` and ``qvel`` indices of joints, given by name and YAML path."""
        indices = [self._scalar_joint(name, path) for name, path in joints]
        return self.mj.jnt_qposadr[indices].astype(np.intp), self.mj.jnt_dofadr[indices].astype(np.intp)

    def servo(self, joint: str, path: str, *, velocity: bool) -> int:
        """Return the index of the servo that drives `joint`, or raise ContractError at `path`."""
        index = self._actuator(joint, path)
        if (problem := why_no_servo(self.mujoco, self.mj, index, velocity=velocity)) is not None:
            raise self.error(path, f"wrong actuator {self.mj.actuator(index).name!r} in {self._name}: {problem}")
        return index

    def joint_of_finger(self, joint: str) -> int:
        """Return the index of a mimicking finger's joint, or -1 if the model lacks it."""
        name = self.profile.joints.get(joint, joint)
        return int(self.mujoco.mj_name2id(self.mj, self.mujoco.mjtObj.mjOBJ_JOINT, name))

    def finger(self, joint: str) -> int:
        """Return the servo of a mimicking finger, or -1 if the model moves or lacks it."""
        index = self.joint_of_finger(joint)
        is_driven = index >= 0 and bool(actuators_of(self.mujoco, self.mj, index))
        return self.servo(joint, f"{self.path}.joints.{joint}", velocity=False) if is_driven else -1

    def _scalar_joint(self, name: str, path: str) -> int:
        remedy = f"; if it has another name there, set {self.path}.joints: {{{name}: JOINT}}"
        index = self.find("joint", self.profile.joints.get(name, name), path, remedy=remedy)
        problem = f"wrong type of the joint {name!r} (expected a hinge or slide joint)"
        self.require(self.mj.jnt_type[index] in self._scalar, path, problem)
        return index

    def _actuator(self, joint: str, path: str) -> int:
        """Return the actuator of `joint`, by the profile, as the only one or by name."""
        driving = actuators_of(self.mujoco, self.mj, self._scalar_joint(joint, path))
        names = [self.mj.actuator(index).name for index in driving]
        if (chosen := self.profile.actuators.get(joint)) is not None:
            where = f"{self.path}.actuators.{joint}"
            if (index := self.find("actuator", chosen, where)) not in driving:
                reason = refusal(self.mujoco, self.mj, index) or "it drives another joint"
                problem = f"{chosen!r} in {self._name}: {reason} (expected one of: {', '.join(names) or 'none'})"
                raise self.error(where, f"the actuator does not drive the joint {joint!r}: {problem}")
            return index
        if not driving:
            problem = f"no actuator drives the joint {joint!r} in {self._name}"
            raise self.error(path, f"{problem} (expected one with its name as `joint`); add one to the model")
        if len(driving) > 1 and joint not in names:
            problem = f"several actuators drive the joint {joint!r} in {self._name}: {', '.join(names)} (expected one)"
            raise self.error(path, f"{problem}; set {self.path}.actuators: {{{joint}: {names[0]}}}")
        return driving[names.index(joint) if joint in names else 0]

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

    @property
    def has_whole_states(self) -> bool:
        """Whether state, inputs and warm start determine a simulation (no sleeping, no plugins)."""
        asleep = int(self.mujoco.mjtEnableBit.mjENBL_SLEEP)
        return not self.mj.nplugin and not self.mj.opt.enableflags & asleep

    def new_data(self) -> MjData:
        """Return a new state of the model, at the keyframe."""
        data = self.mujoco.MjData(self.mj)
        self.reset(data)
        return data

    def reset(self, data: MjData) -> None:
        """Reset `data` to the keyframe, and clear warm starts, warnings and forces."""
        if self._keyframe is None:
            self.mujoco.mj_resetData(self.mj, data)
        else:
            self.mujoco.mj_resetDataKeyframe(self.mj, data, self._keyframe)
        data.qpos[self._home] = self._home_positions

    def _check_names(self) -> None:
        """Raise ContractError for a profile joint that neither contract nor drive names."""
        known = {wheel for drive in self.profile.drives.values() for wheel in (drive.left, drive.right)}
        known.update(joint for actuator in self.contract.actuators.values() for joint in actuator.published_joints)
        for sensor in self.contract.sensors.values():
            known.update(joint for spec in sensor.fields.values() for joint in spec.joints or ())
        for key in ("joints", "actuators", "servo_gains"):
            for joint in getattr(self.profile, key):
                self.require(joint in known, f"{self.path}.{key}.{joint}", f"no such joint: {one_of(joint, known)}")

    def _check_start(self) -> None:
        layout, qpos, home = ActionLayout(self.contract), self.new_data().qpos, self.profile.home
        bounds = np.stack([layout.limits.position_low, layout.limits.position_high], axis=1).tolist()
        limits = dict(zip(layout.joints, bounds, strict=True))
        for joint in {**home, **limits}:
            name = self.profile.joints.get(joint, joint)
            index = int(self.mujoco.mj_name2id(self.mj, self.mujoco.mjtObj.mjOBJ_JOINT, name))
            if index < 0 or self.mj.jnt_type[index] not in self._scalar:  # reported where the contract names it
                continue
            position, (low, high) = float(qpos[self.mj.jnt_qposadr[index]]), limits.get(joint, (-math.inf, math.inf))
            if self.mj.jnt_limited[index]:
                low, high = max(low, float(self.mj.jnt_range[index, 0])), min(high, float(self.mj.jnt_range[index, 1]))
            remedy = "" if joint in home else f"; set {self.path}.home: {{{joint}: POSITION}}"
            problem = f"{joint} starts at {position:g} (expected {low:g} to {high:g}, its limits after margins){remedy}"
            self.require(low <= position <= high, f"{self.path}.home.{joint}", problem)


def _names_upwards(body: Any) -> Iterator[str]:  # noqa: ANN401 - mujoco has no type stubs
    while body is not None:
        yield body.name
        body = body.parent


# by contract, which they keep alive
_compiled: WeakValueDictionary[tuple[int, str], WorldModel] = WeakValueDictionary()


def shared_model(contract: Contract, profile: WorldProfile, path: str) -> WorldModel:
    """Return the shared model of a contract, or a copy if a reset draws its properties."""
    key = id(contract), path
    model = _compiled.get(key)
    if model is None or model.profile != profile:
        model = _compiled[key] = WorldModel(contract, profile, path)
    draws_identified = profile.identified is not None and profile.identified.draw is not None
    if not draws_identified and not any(draw.changes_model for draw in profile.draws.values()):
        return model
    own = copy.copy(model)
    own.mj, own.original = copy.copy(model.mj), model
    return own


def find_model(contract: Contract, name: str, path: str) -> Path:
    """Return a model's file, a shipped one if untrusted, or raise ContractError at `path`."""
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
