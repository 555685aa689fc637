"""Models from LeRobot's pretrained directories, computed by LeRobot with its processors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from embodied_env.core.policy import PolicyIdentity
from embodied_env.errors import MissingDependencyError, UsageError, described
from embodied_env.policies.lerobot_checkpoint import read_mapping, read_normalizers
from embodied_env.policies.normalization import Normalization
from embodied_env.policies.policy_model import ArraySpec, Inputs, Outputs, PolicyModel

TASK = "task"  # input of a language-conditioned policy: its instruction
_MIGRATE = "migrate it: python -m lerobot.processor.migrate_policy_normalization --pretrained-path DIR"
_FILES = {  # the files of a policy since LeRobot 0.4, and what to do without one
    "config.json": "give the folder pretrained_model of a checkpoint; nothing is downloaded",
    "model.safetensors": "save it with save_pretrained of LeRobot; weights in pickle (.bin, .pt) are never read",
    "policy_preprocessor.json": _MIGRATE,
    "policy_postprocessor.json": _MIGRATE,
}

_DEVICE = "device_processor"
WITHOUT_TEXT = ("act", "diffusion", "gaussian_actor", "sac", "tdmpc", "vqbet")
"""The types of policies without an instruction."""


def load_lerobot(location: str, *, trust: bool = False, device: str | None = None) -> PolicyModel:
    """Return the model of a pretrained policy directory, which is not downloaded.

    Args:
        location: directory with ``config.json``, ``model.safetensors`` and the processors, as LeRobot saves it.
        trust: run processor steps of modules outside of LeRobot, which the directory names.
        device: torch device of the inference; None: that of ``config.json`` if this machine has it.

    Raises:
        UsageError: for a directory that is not such a policy.
        MissingDependencyError: if LeRobot is not installed.
    """
    if device is not None and not (isinstance(device, str) and device):
        raise UsageError(f"invalid device={device!r} (expected the name of a torch device, such as 'cpu')")
    folder = Path(location)
    for name, remedy in _FILES.items():
        if not (folder / name).is_file():
            problem = f"cannot read LeRobot policy {location!r}: no {name} (expected a pretrained policy directory)"
            raise UsageError(f"{problem}; {remedy}")
    steps = [_read_steps(folder / name, trust=trust) for name in list(_FILES)[2:]]
    normalizations, lost = read_normalizers(folder)
    if lost:
        problem = f"LeRobot policy {location!r} normalises without statistics: no {', '.join(lost):.400}"
        raise UsageError(f"{problem} (expected them for every normalised feature); save it with those of its dataset")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a tokenizer is read from the cache
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError:
        remedy = "install lerobot in a virtual environment of its own, and run embodied-env serve there"
        raise MissingDependencyError("lerobot", needed_for="a LeRobot policy", remedy=remedy) from None
    try:
        settings = PreTrainedConfig.from_pretrained(folder)
        settings.device = settings.device if device is None else device
        if hasattr(settings, "pretrained_backbone_weights"):
            settings.pretrained_backbone_weights = None  # of the same network, else downloaded and then replaced
        policy = get_policy_class(settings.type).from_pretrained(folder, config=settings, strict=True)
        place = {_DEVICE: {"device": settings.device}} if any(name == _DEVICE for name, _ in steps[0]) else {}
        processors = make_pre_post_processors(settings, pretrained_path=str(folder), preprocessor_overrides=place)
    except Exception as error:
        raise UsageError(f"cannot load LeRobot policy {location!r}: {described(error)}") from error
    sha256 = _sha256(folder, {*_FILES, *(file for pipeline in steps for _, file in pipeline if file)})
    library = f"lerobot {version('lerobot')}"
    identity = PolicyIdentity(name=f"lerobot:{location}", format="lerobot", sha256=sha256, library=library)
    return LerobotModel(policy, processors, identity, normalizations)


class LerobotModel(PolicyModel):
    """A policy of LeRobot between its pre-processor and post-processor.

    A policy that predicts a chunk from one observation returns all of it. One that keeps a history or a queue of
    actions, such as Diffusion or temporal ensembling, returns one action, and is called at every step. Images are
    (channels, height, width) from 0 to 1.
    """

    def __init__(
        self,
        policy: Any,  # noqa: ANN401 - untyped
        processors: tuple[Any, Any],
        identity: PolicyIdentity,
        normalizations: Mapping[str, Normalization] = MappingProxyType({}),
    ) -> None:
        """Read the features of `policy`, or raise UsageError unless its output is an action."""
        self.normalizations = normalizations
        self.identity, self._policy, (self._before, self._after) = identity, policy, processors
        settings = policy.config
        if list(settings.output_features) != ["action"]:
            found = list(settings.output_features)
            raise UsageError(f"policy {identity.name}: outputs {found} (expected 'action' alone)")
        self.inputs = {name: _spec(feature.shape) for name, feature in settings.input_features.items()}
        if settings.type not in WITHOUT_TEXT:
            self.inputs[TASK] = ArraySpec(shape=(), dtype=np.dtype(np.str_))
        is_averaged = getattr(settings, "temporal_ensemble_coeff", None) is not None
        self._has_chunks = hasattr(settings, "chunk_size") and settings.n_obs_steps == 1 and not is_averaged
        rtc = getattr(settings, "rtc_config", None)
        self.continues_chunks = bool(self._has_chunks and getattr(rtc, "enabled", False))
        self._rows: Any = None  # of the last inference, before the post-processor
        self._prefix: dict[str, Any] = {}  # options of the next inference
        shape = settings.output_features["action"].shape
        self.outputs = {"action": _spec((None, *shape) if self._has_chunks else shape)}
        self.reset(seed=0, episode_index=0)

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the protocol's
        """Discard the episode's history and actions, and seed the draws of a generative policy."""
        import torch

        torch.manual_seed(seed)
        self._rows, self._prefix = None, {}
        for each in (self._policy, self._before, self._after):
            each.reset()

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        """Make the next inference continue the last chunk by LeRobot's ``rtc_config``."""
        if self._rows is not None:
            self._prefix = {"prev_chunk_left_over": self._rows[executed:], "inference_delay": delay}

    def infer(self, inputs: Inputs, /) -> Outputs:
        """Return the chunk or the action of one inference."""
        import torch

        batch: dict[str, Any] = {
            name: torch.from_numpy(np.array(inputs[name], dtype=np.float32))[None]  # copied: torch cannot read only
            for name in self.inputs
            if name != TASK
        }
        batch |= {TASK: str(inputs.get(TASK, "")), "robot_type": ""}
        options, self._prefix = self._prefix, {}
        with torch.no_grad() if self.continues_chunks else torch.inference_mode():  # RTC computes gradients
            seen = self._before(batch)
            if self._has_chunks:
                self._rows = self._policy.predict_action_chunk(seen, **options)[0]
                rows = self._after(self._rows)  # its batch: one action per row
            else:
                rows = self._after(self._policy.select_action(seen))[0]
        return {"action": rows.to("cpu", torch.float32).numpy()}


def _spec(shape: tuple[int | None, ...]) -> ArraySpec:
    return ArraySpec(shape=tuple(shape), dtype=np.dtype(np.float32))


def _read_steps(path: Path, *, trust: bool) -> list[tuple[str, str | None]]:
    """Return name and state file of each step, or raise UsageError for code or outside files."""
    content = read_mapping(path)
    try:
        steps = [(str(each.get("registry_name") or each["class"]), each.get("state_file")) for each in content["steps"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read {path}: {described(error)} (expected a processor of LeRobot)") from None
    present = [each.name for each in path.parent.glob("*.safetensors")]
    for name, file in steps:
        if "." in name and not name.startswith("lerobot.") and not trust:
            raise UsageError(f"not trusted: {path} imports {name} (expected trust=True or --trust-policy)")
        if file is not None and file not in present:
            raise UsageError(f"cannot read {path}: state_file {file!r} (expected a safetensors file next to it)")
    return steps


def _sha256(folder: Path, names: Iterable[str]) -> str:
    """Return the SHA-256 of names and hashes, as ``sha256sum FILES | sha256sum`` prints it."""
    lines = []
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
