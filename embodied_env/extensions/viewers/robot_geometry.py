"""Read a robot's triangles by link from MJCF or URDF, and the links' frames by positions.

MuJoCo compiles both. The links of an MJCF model are the bodies of each kinematic tree with an actuated joint, and their
named sites; what else is in the world is not drawn, since rows do not have its state.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.bounded_files import read_file
from embodied_env.contract.model_files import EMBEDDED
from embodied_env.contract.urdf import parse_urdf
from embodied_env.errors import EmbodiedEnvError, UsageError
from embodied_env.sim.mujoco_kinematics import GENERATED
from embodied_env.sim.world_model import WorldModel, import_mujoco
from embodied_env.sim.world_profile import WorldProfile, load_profile

FIXED_FRAME = "world"
"""The frame of a robot with a fixed base, and of a sensor without a declared frame."""

Color = tuple[float, float, float, float]
"""Red, green, blue and opacity, from 0 to 1."""

_IDENTITY = (0.0, 0.0, 0.0, 1.0)
_MESHES = (".stl", ".obj")  # files that MuJoCo reads
_SEGMENTS = 24  # of a circle
_VISIBLE = (0, 1, 2)  # groups of geoms that MuJoCo's viewer shows
_COMPILER = dict.fromkeys(("discardvisual", "fusestatic", "strippath"), "false") | {
    "boundmass": "1",
    "boundinertia": "1",
}


class Pose(NamedTuple):
    """A pose in a frame, with position in m and unit quaternion x, y, z, w."""

    frame: str
    position: tuple[float, ...]
    quaternion: tuple[float, ...] = _IDENTITY


class Part(NamedTuple):
    """Triangles of one colour in a link's frame, of vertices (n, 3), m, and indices (k, 3)."""

    link: str
    color: Color
    vertices: NDArray[np.float32]
    triangles: NDArray[np.uint32]


class RobotGeometry:
    """The parts of a robot, and the poses of its links.

    `base_sensor`: the sensor whose pose places a free base; without one ("") such a base stays as in the keyframe.
    `root`: the frame of the poses and of the path of the tool. `mimics`: joint -> the joint that it follows, with ratio
    and offset.
    """

    def __init__(self, mujoco: Any, mj: Any, data: Any, bodies: Mapping[int, str], names: Mapping[str, str]) -> None:  # noqa: ANN401 - mujoco has no type stubs
        """Read the geoms of `bodies` (index -> link), with other `names` of joints in the model."""
        self._mujoco, self._mj, self._data = mujoco, mj, data
        self.base_sensor, self.root = "", FIXED_FRAME
        self.mimics: dict[str, tuple[str, float, float]] = {}
        scalar = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
        self._qpos = {mj.joint(i).name: int(mj.jnt_qposadr[i]) for i in range(mj.njnt) if mj.jnt_type[i] in scalar}
        self._qpos |= {ours: self._qpos[theirs] for ours, theirs in names.items() if theirs in self._qpos}
        self._bodies = bodies
        depths = {body: self._joints_above(body) for body in bodies}
        sites = {site: int(mj.site_bodyid[site]) for site in range(mj.nsite) if int(mj.site_bodyid[site]) in bodies}
        self._sites = {site: name for site in sites if (name := mj.site(site).name) not in ("", *bodies.values())}
        self._tool = data.body(max(bodies, key=lambda body: (depths[body], body)))
        if sites:
            self._tool = data.site(max(sites, key=lambda site: (depths[sites[site]], site)))
        self.parts = _read_parts(mujoco, mj, bodies)

    def follow(self, sensor: str, site: int) -> None:
        """Place a free base by the poses of a sensor at `site`, if that is a site of the base."""
        body = int(self._mj.site_bodyid[site])
        joint = int(self._mj.body_jntadr[body])
        if body in self._bodies and joint >= 0 and self._mj.jnt_type[joint] == int(self._mujoco.mjtJoint.mjJNT_FREE):
            self.base_sensor, self._base = sensor, int(self._mj.jnt_qposadr[joint])
            self._offset = np.zeros(3), np.zeros(4)  # of the base in the frame of the site
            self._mujoco.mju_negPose(*self._offset, self._mj.site_pos[site], self._mj.site_quat[site])

    def place(self, positions: Mapping[str, float], base: Pose | None = None) -> dict[str, Pose]:
        """Return the pose of each link after moving only these joints, for this `base_sensor` pose."""
        if base is not None:
            x, y, z, w = base.quaternion
            position, turn = np.zeros(3), np.zeros(4)
            self._mujoco.mju_mulPose(position, turn, np.array(base.position), np.array([w, x, y, z]), *self._offset)
            self._data.qpos[self._base : self._base + 7] = [*position, *turn]
            self.root = base.frame
        self._move(positions)
        found = {name: self._pose(self._data.xpos[i], self._data.xquat[i]) for i, name in self._bodies.items()}
        for site, name in self._sites.items():
            turn = np.zeros(4)
            self._mujoco.mju_mat2Quat(turn, self._data.site_xmat[site])
            found[name] = self._pose(self._data.site_xpos[site], turn)
        return found

    def tool_path(self, rows: Iterable[Mapping[str, float]]) -> FloatArray:
        """Return the positions, (n, 3), m, of the tool for joint positions."""
        found, before = [], np.array(self._data.qpos)
        for positions in rows:
            self._move(positions)
            found.append(np.array(self._tool.xpos))
        self._data.qpos[:] = before
        return np.array(found).reshape(-1, 3)

    def _move(self, positions: Mapping[str, float]) -> None:
        for joint in positions.keys() & self._qpos.keys():
            self._data.qpos[self._qpos[joint]] = positions[joint]
        for joint, (leader, ratio, shift) in self.mimics.items():
            self._data.qpos[self._qpos[joint]] = ratio * self._data.qpos[self._qpos[leader]] + shift
        self._mujoco.mj_kinematics(self._mj, self._data)

    def _pose(self, position: FloatArray, turn: FloatArray) -> Pose:
        w, x, y, z = turn.tolist()
        return Pose(self.root, tuple(position.tolist()), (x, y, z, w))

    def _joints_above(self, body: int) -> int:
        count = 0
        while body:
            count += int(self._mj.body_jntnum[body])
            body = int(self._mj.body_parentid[body])
        return count


def find_geometry(contract: Contract, urdf: str | None = None) -> RobotGeometry | str:
    """Return the geometry of the robot of a contract, or why it is not known.

    It is that of the file `urdf`, else of the MuJoCo model of a backend profile, else of the contract's URDF. The
    contract of a run opens no file that it names: only shipped models and the recorded URDF, without meshes, are used.

    Raises:
        UsageError: for a file `urdf` that cannot be read or is no URDF.
    """
    if urdf is not None:
        try:
            return _from_urdf(read_file(urdf), Path(urdf).parent, source=urdf)
        except (OSError, ValueError) as error:  # ValueError: a ContractError, of MuJoCo, or a null byte in the name
            raise UsageError(f"cannot read the URDF {urdf!r}: {error}") from None
    try:
        profiles = {name: load_profile(contract, name) for name in EMBEDDED if name in contract.backends}
        for name, profile in profiles.items():
            if profile.model is not None:
                return _from_model(contract, profile, f"backends.{name}")
        if (file := contract.safety.urdf) is not None:
            folder = Path(contract.source).parent if contract.trusted else None
            return _from_urdf(contract.content_of(file), folder, source=file)
        for profile in profiles.values():
            if (file := profile.emulator.robot_description) not in (None, GENERATED):
                path = contract.resolve_path(str(file))
                return _from_urdf(read_file(path), path.parent, source=str(path))
    except (EmbodiedEnvError, OSError, ValueError) as error:
        return str(error)
    return "the contract names neither a MuJoCo model nor a URDF"


def _from_model(contract: Contract, profile: WorldProfile, path: str) -> RobotGeometry | str:
    model = WorldModel(contract, profile, path)
    mj = model.mj
    actuated = {profile.joints.get(joint, joint) for part in contract.actuators.values() for joint in part.joints}
    actuated |= {wheel for drive in profile.drives.values() for wheel in (drive.left, drive.right)}
    carriers = [mj.jnt_bodyid[i] for i in range(mj.njnt) if mj.joint(i).name in actuated]
    driven = [
        model.find("site", each.site, f"{path}.site_drives.{name}.site") for name, each in profile.site_drives.items()
    ]
    carriers += [mj.site_bodyid[site] for site in driven]
    roots = {int(mj.body_rootid[body]) for body in carriers}
    bodies = {i: mj.body(i).name or f"body_{i}" for i in range(1, mj.nbody) if mj.body_rootid[i] in roots}
    if not bodies:
        return f"no joint of {profile.model} is actuated"
    geometry = RobotGeometry(model.mujoco, mj, model.new_data(), bodies, profile.joints)
    sources = {name: each for name, each in profile.sources.items() if each.odometry or each.site}
    for name in sorted(sources, key=lambda name: sources[name].odometry is None):  # a pose rather than odometry
        source, fields = sources[name], contract.sensors[name].fields
        if source.relative_to is None and {"position", "orientation"} <= fields.keys():
            site = source.odometry.site if source.odometry else str(source.site)
            geometry.follow(name, model.find("site", site, f"{path}.sources.{name}.site"))
    return geometry


def _from_urdf(text: bytes, folder: Path | None, *, source: str) -> RobotGeometry:
    """Read a URDF and its meshes, none without a `folder`, else collision geometry of a link."""
    robot, root, mujoco = parse_urdf(text, source=source), ET.fromstring(text), import_mujoco()  # noqa: S314 - parse_urdf refuses a DOCTYPE
    for parent in (root, *root.iter("material")):  # what else may name files
        for element in (*parent.findall("mujoco"), *parent.findall("texture")):
            parent.remove(element)
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", _COMPILER)
    for link in root.iter("link"):
        shapes = {tag: link.findall(tag) for tag in ("visual", "collision")}
        kept = {tag: [shape for shape in each if _is_readable(shape, folder)] for tag, each in shapes.items()}
        drawn = kept["visual"] or kept["collision"]
        for shape in (*shapes["visual"], *shapes["collision"]):
            shape.attrib.pop("name", None)  # of a geom, where it must be unique
            if shape not in drawn:
                link.remove(shape)
    mj = mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))
    children = {spec.child for spec in robot.specs.values()}
    (base,) = [link.get("name", "") for link in root.iter("link") if link.get("name") not in children]
    bodies = {i: mj.body(i).name if i else base for i in range(mj.nbody)}  # the root link is part of MuJoCo's world
    geometry = RobotGeometry(mujoco, mj, mujoco.MjData(mj), bodies, {})
    geometry.mimics = {name: spec.mimics for name, spec in robot.specs.items() if spec.mimics is not None}
    return geometry


def _is_readable(shape: ET.Element, folder: Path | None) -> bool:
    """Return whether the files of a shape can be read, with URIs replaced by paths."""
    files = {element: _find_mesh(element.get("filename", ""), folder) for element in shape.iter("mesh")}
    for mesh, file in files.items():
        mesh.set("filename", str(file))
    return None not in files.values()


def _find_mesh(uri: str, folder: Path | None) -> Path | None:
    if folder is None or not uri.lower().endswith(_MESHES):
        return None
    candidates = [folder / uri.removeprefix("file://")]
    if uri.startswith("package://"):
        package, _, rest = uri.removeprefix("package://").partition("/")
        prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
        candidates = [Path(prefix, "share", package, rest) for prefix in prefixes if prefix]
        candidates += [parent / rest for parent in folder.resolve().parents if parent.name == package]
    return next((file.resolve() for file in candidates if file.is_file()), None)


def _read_parts(mujoco: Any, mj: Any, bodies: Mapping[int, str]) -> list[Part]:  # noqa: ANN401 - mujoco has no type stubs
    """Return the visible geoms of each body, or all of one without any, joined by colour."""
    joined: dict[tuple[str, Color], list[tuple[FloatArray, NDArray[Any]]]] = defaultdict(list)
    for body, link in bodies.items():
        geoms = range(mj.body_geomadr[body], mj.body_geomadr[body] + mj.body_geomnum[body])
        for geom in [geom for geom in geoms if mj.geom_group[geom] in _VISIBLE] or geoms:
            material = mj.geom_matid[geom]
            color = tuple((mj.geom_rgba[geom] if material < 0 else mj.mat_rgba[material]).tolist())
            vertices, triangles = _triangles(mujoco, mj, geom)
            if len(triangles) and color[3] > 0.0:
                turn = np.zeros(9)
                mujoco.mju_quat2Mat(turn, mj.geom_quat[geom])
                joined[link, color].append((vertices @ turn.reshape(3, 3).T + mj.geom_pos[geom], triangles))
    parts = []
    for (link, color), shapes in joined.items():
        starts = np.cumsum([0, *(len(vertices) for vertices, _ in shapes)])
        triangles = np.concatenate([start + each for start, (_, each) in zip(starts, shapes, strict=False)])
        vertices = np.concatenate([each for each, _ in shapes])
        parts.append(Part(link, color, vertices.astype(np.float32), triangles.astype(np.uint32)))
    return parts


def _triangles(mujoco: Any, mj: Any, geom: int) -> tuple[FloatArray, NDArray[Any]]:  # noqa: ANN401 - mujoco has no type stubs
    """Return vertices and triangles of a geom in its frame, none for planes and height fields."""
    kinds, kind, size = mujoco.mjtGeom, int(mj.geom_type[geom]), mj.geom_size[geom]
    if kind == int(kinds.mjGEOM_MESH):
        mesh = mj.mesh(mj.geom_dataid[geom])
        vertices = mj.mesh_vert[mesh.vertadr[0] : mesh.vertadr[0] + mesh.vertnum[0]]
        return vertices, mj.mesh_face[mesh.faceadr[0] : mesh.faceadr[0] + mesh.facenum[0]]
    if kind == int(kinds.mjGEOM_BOX):
        corners = np.array(list(product((-1.0, 1.0), repeat=3)))
        faces = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
        return size * corners, np.array([half for a, b, c, d in faces for half in ((a, b, c), (a, c, d))])
    angles = np.linspace(0.0, np.pi, _SEGMENTS // 2 + 2)  # from the upper pole to the lower one
    ball = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    ends = np.stack([0 * angles, np.where(angles < np.pi / 2, size[1], -size[1])], axis=1)
    profiles = {
        int(kinds.mjGEOM_SPHERE): size[0] * ball,
        int(kinds.mjGEOM_CAPSULE): size[0] * ball + ends,
        int(kinds.mjGEOM_CYLINDER): np.array([(0, 1), (1, 1), (1, -1), (0, -1)]) * size[:2],
        int(kinds.mjGEOM_ELLIPSOID): ball,
    }
    if kind not in profiles:
        return np.zeros((0, 3)), np.zeros((0, 3), dtype=np.uint32)
    vertices, triangles = _revolved(profiles[kind])
    return vertices * size if kind == int(kinds.mjGEOM_ELLIPSOID) else vertices, triangles


def _revolved(profile: FloatArray) -> tuple[FloatArray, NDArray[Any]]:
    """Return the surface of revolution of radii and heights, (n, 2), from top to bottom."""
    turns = np.linspace(0.0, 2 * np.pi, _SEGMENTS, endpoint=False)
    radii, heights = profile[:, :1], profile[:, 1:]
    vertices = np.stack([radii * np.cos(turns), radii * np.sin(turns), heights + 0 * turns], axis=-1)
    index = np.arange(vertices.shape[0] * _SEGMENTS).reshape(-1, _SEGMENTS)
    upper, lower = index[:-1], index[1:]
    after_upper, after_lower = np.roll(upper, -1, axis=1), np.roll(lower, -1, axis=1)
    halves = [
        np.stack(corners, axis=-1) for corners in ((upper, lower, after_lower), (upper, after_lower, after_upper))
    ]
    return vertices.reshape(-1, 3), np.concatenate(halves).reshape(-1, 3)
