"""A draft policy file of a LeRobot policy, and the list of what is missing from its files.

Unknown parts are left out, or written in a way that is refused, so that the file is not used until it is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.yaml_text import checked_text, comment, dump_yaml
from embodied_env.errors import escaped
from embodied_env.policies.input_mapping import observed_fields
from embodied_env.policies.lerobot_checkpoint import Feature, LerobotPolicy
from embodied_env.policies.lerobot_model import TASK, WITHOUT_TEXT
from embodied_env.policies.policy_file import SCHEMA, STATISTICS

Document = dict[str, Any]
Groups = Mapping[str, Sequence[str | int]]
"""The joints of each field or actuator, or the indices of a field without joints."""

_EPSILON = 1e-8  # epsilon of LeRobot's normalisation
_PREFIX = re.compile(r"^(?:main|follower)_")
_QUANTITY = re.compile(r"[._](pos|vel|eff)(?:ition|ocity|ort)?$")


def draft_policy_file(
    policy: LerobotPolicy, contract: Contract, *, name: str, normalize: bool
) -> tuple[str, list[tuple[str, str]]]:
    """Return the YAML text of a policy file for `policy`, and what is unknown.

    The second result has pairs of what is unknown and where to find it. With `normalize` the policy file normalises and
    keeps the history, as for a model exported to ONNX. Otherwise LeRobot's own processors do.
    """
    draft = _Draft(policy, contract, normalize=normalize)
    document = {"policy": SCHEMA, "name": name, **draft.document()}
    purpose = "a model exported without LeRobot's processors" if normalize else "lerobot:DIR, which normalises itself"
    heading = [f"A draft of `embodied-env policy init`, for {purpose}."]
    heading += ["Unknown when it was written:"] * bool(draft.gaps)
    heading += [f"- {what}: {where}" for what, where in draft.gaps]
    text = "".join(f"{comment(line)}\n" for line in heading) + dump_yaml(document)
    return checked_text(text, document), draft.gaps


class _Draft:
    """The document in the making. `gaps` are pairs of what is unknown and where to find it."""

    def __init__(self, policy: LerobotPolicy, contract: Contract, *, normalize: bool) -> None:
        self.gaps: list[tuple[str, str]] = []
        self._policy, self._contract, self._normalize = policy, contract, normalize
        self._fields = observed_fields(contract)
        self._observed: Groups = {
            key: (self._fields[key].spec.joints if key in self._fields else None) or range(prod(box.shape or ()))
            for key, box in contract.observation_space.spaces.items()
        }

    def document(self) -> Document:
        policy, document = self._policy, Document()
        if policy.contract:
            document["contract"] = dict(policy.contract)
        if policy.rate_hz:
            period_s, ours_s = 1.0 / policy.rate_hz, self._contract.control_period_s
            is_ours = abs(period_s - ours_s) < 1e-3 * ours_s
            document["control_period_s"] = ours_s if is_ours else round(period_s, 9)
            if not is_ours:
                what = f"steps of {period_s:.4g} s in the contract, whose control_period_s is {ours_s:g}"
                self._gap(what, "set that of the contract, or resample: hold or linear")
        else:
            self._gap("rate of the training data", "name its dataset with --dataset DIR, or set control_period_s")
        for each in () if self._normalize else policy.lost:
            self._gap(f"statistic {each}", "save the policy with those of its dataset; LeRobot would not normalise")
        document["inputs"] = {name: self._input(name, feature) for name, feature in policy.inputs.items()}
        if policy.kind not in WITHOUT_TEXT:
            document["inputs"][TASK] = {"text": "instruction"}
        document["outputs"] = {name: self._output(name, feature) for name, feature in policy.outputs.items()}
        length = policy.chunk_size or (policy.n_action_steps if self._normalize else 0)
        if policy.returns_chunks or (self._normalize and length > 1):
            document["chunk"] = {"length": length, "execute": policy.n_action_steps}
        if self._normalize and policy.is_relative:
            self._gap("joints whose exported actions are relative to the state", "set mode: relative in their parts")
        if self._normalize and policy.kind == "diffusion" and policy.n_obs_steps > 1:
            self._gap("first action of the exported chunk", "export the actions that follow the newest observation")
        return document

    def _gap(self, what: str, where: str) -> None:
        self.gaps.append((escaped(what), escaped(where)))

    def _input(self, name: str, feature: Feature) -> Document:
        path = f"inputs.{name}"
        if feature.kind == "VISUAL":
            spec: Document = {"image": self._image(name, feature)}
        elif len(feature.shape) > 1:
            spec = {"image": self._depth(name, feature)}
        else:
            spec = {"parts": [self._input_part(*run) for run in self._split(path, feature, self._observed)]}
        if self._normalize and self._policy.n_obs_steps > 1:
            spec["history"] = {"steps": list(range(1 - self._policy.n_obs_steps, 1))}
        return spec | self._normalization(path, feature)

    def _input_part(self, key: str, components: list[str | int]) -> Document:
        field = self._fields.get(key)
        if field is not None and field.spec.joints:
            part: Document = {"field": key, "joints": components}
            if self._policy.contract:
                known = field.spec.units_by_joint()
                units = [known.get(str(joint)) for joint in components]
                part["unit"] = units[0] if len({*units}) == 1 else units
            return part
        if components != [*self._observed[key]]:
            return {"field": key, "components": components}
        return {"field": key, "quaternion": "xyzw"} if field is not None and field.is_rotation else {"field": key}

    def _image(self, name: str, feature: Feature) -> Document:
        """Return an image in LeRobot's form, which is RGB from 0 to 1 with channels first."""
        camera = name.removeprefix("observation.").removeprefix("images.")
        layouts = {key: field.layout for key, field in self._fields.items() if field.sensor.encoding is not None}
        images = {key: layout.shape for key, layout in layouts.items() if layout.dtype == np.uint8}
        n_images = sum(each.kind == "VISUAL" for each in self._policy.inputs.values())
        fitting = [key for key in images if key == camera] or [key for key in images if camera in key.split("_")]
        fitting = fitting or (list(images) if n_images == 1 else [])
        size = feature.shape[1:]
        if len(fitting) != 1:
            key, known = f"inputs.{name}.image.field", ", ".join(images)
            remedy = f"set {key} to one of: {known}" if images else f"add a camera to the contract, and set {key}"
            self._gap(f"camera of {name}", remedy)
        elif images[fitting[0]][:2] != size:
            height, width = images[fitting[0]][:2]
            what = f"resizing of {fitting[0]}, {height}x{width}, to the {size[0]}x{size[1]} of {name}"
            self._gap(what, f"set inputs.{name}.image.method as in training: letterbox, crop or stretch")
        field = fitting[0] if len(fitting) == 1 else camera
        is_repeated = field in self._fields and self._fields[field].sensor.pixels == "mono8" and feature.shape[0] == 3
        expand = {"expand": True} if is_repeated else {}
        return {"field": field, "size": list(size), "layout": "chw", "range": [0.0, 1.0], **expand}

    def _depth(self, name: str, feature: Feature) -> Document:
        """Return a depth image as in our export, in metres with the axes of the contract."""
        key = name.removeprefix("observation.")
        if key not in self._observed:
            self._gap(f"meaning of {name}, {list(feature.shape)}", f"set inputs.{name}.image.field to a depth image")
        return {"field": key, "size": list(feature.shape[:2]), "channels": "depth"}

    def _output(self, name: str, feature: Feature) -> Document:
        actuators = {each: tuple(spec.joints) for each, spec in self._contract.actuators.items()}
        unit = {"unit": "action"} if self._policy.contract else {}
        runs = self._split(f"outputs.{name}", feature, actuators)
        parts = [{"actuator": actuator, "joints": joints, **unit} for actuator, joints in runs]
        return {"parts": parts} | self._normalization(f"outputs.{name}", feature)

    def _split(self, path: str, feature: Feature, groups: Groups) -> list[tuple[str, list[str | int]]]:
        names = feature.names or tuple(f"component_{index}" for index in range(prod(feature.shape)))
        found = [self._locate(name, groups) for name in names]
        unknown = [name for name, (key, _) in zip(names, found, strict=True) if not key]
        by_joint = {key: [each for each in group if isinstance(each, str)] for key, group in groups.items()}
        first = next((key for key, joints in by_joint.items() if joints), next(iter(groups)))
        located = [(key or first, component) for key, component in found]
        joints = ", ".join(dict.fromkeys(joint for each in by_joint.values() for joint in each))
        if not feature.names:
            self._gap(f"names of the components of {path}", f"name the dataset with --dataset DIR, or set {path}.parts")
        elif unknown:
            self._gap(f"{', '.join(unknown)} of {path}", f"replace them in {path}.parts, by joints such as {joints}")
        if not self._policy.contract and any(isinstance(component, str) for _, component in located):
            statistics = feature.statistics
            ends = [statistics.get(each) or statistics.get("mean", ()) for each in ("min", "max")]
            ranges = [f"{name} {low:.4g} to {high:.4g}" for name, low, high in zip(names, *ends, strict=False)]
            known = f" (values: {', '.join(ranges)})" if ranges else ""
            units = "rad, deg, or -100..100 or 0..100 with limits, one per joint if they differ"
            self._gap(f"unit of {path}{known}", f"set {path}.parts[...].unit: {units}")
            self._gap(f"sign and zero of the joints of {path}", "compare with `policy show`; set sign and offset")
            actuators = [self._contract.actuators[key] for key, _ in located if key in self._contract.actuators]
            if any(actuator.command == "position_delta" for actuator in actuators):
                what = f"positions of {path}, where the contract commands displacements"
                self._gap(what, "set command: position of the actuator in the contract")
        runs = groupby(located, key=lambda each: (each[0], type(each[1])))
        return [(key, [component for _, component in run]) for (key, _), run in runs]

    def _locate(self, name: str, groups: Groups) -> tuple[str, str | int]:
        """Return the group and the component of a name, or "" and the name."""
        own, _, component = name.partition(".")  # KEY.JOINT, KEY.AXIS or KEY.INDEX in our export
        group = groups.get(own, ())
        components = dict(zip("xyzw", group, strict=False)) | {str(n): each for n, each in enumerate(group)}
        components |= {str(each): each for each in group}
        if component in components:
            return own, components[component]
        quantity = _QUANTITY.search(name.lower())
        joints = [(key, each) for key, each_of in groups.items() for each in each_of if isinstance(each, str)]
        found = {self._quantity(key): (key, each) for key, each in joints[::-1] if _plain(each) == _plain(name)}
        wanted = (quantity[1],) if quantity else ("pos", "vel", "eff")
        return next((found[each] for each in (*wanted, "") if each in found), ("", name))

    def _quantity(self, key: str) -> str:
        """Return the quantity of the joints of a field, or "" for an actuator, which may be any."""
        if key not in self._fields:
            return ""
        unit = next(iter(self._fields[key].spec.units_by_joint().values()))
        return "vel" if "/s" in unit else "eff" if unit.startswith("N") else "pos"

    def _normalization(self, path: str, feature: Feature) -> Document:
        """Return the key `normalize`, without numbers if they are unknown."""
        if not self._normalize or feature.method is None:
            return {}
        size = feature.shape[0] if feature.kind == "VISUAL" else prod(feature.shape)
        wanted = STATISTICS[feature.method]
        numbers = {key: list(feature.statistics[key]) for key in wanted if len(feature.statistics.get(key, ())) == size}
        if len(numbers) < len(wanted):
            self._gap(f"{' and '.join(wanted)} of {path}", "name the dataset with --dataset DIR, or set them")
        return {"normalize": {"method": feature.method, **numbers, "epsilon": _EPSILON}}


def _plain(name: str) -> str:
    return _QUANTITY.sub("", _PREFIX.sub("", name.lower()))
