"""What was learned, with the contract it was learned under: saved, loaded, and refused under another contract.

A checkpoint is a folder::

    checkpoint.json   schema, contract (name, version, fingerprint, what it means), SHA-256 of the actor, who trained it
    actor.npz         the policy without its noise: a perceptron over the observation; arrays only, nothing is executed

What a learner needs besides to go on learning (weights of its critics, its optimiser) may lie in the same folder. To
act, numpy is enough: a robot needs no learning library.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.files import MOST_DATA_BYTES, read_file, read_text_file
from embodied_env.contract.fingerprint import differences, meaning, to_plain
from embodied_env.core.bounded_json import parse_json
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.manifest import write_json

SCHEMA = "embodied_env/checkpoint/1"
ACTIVATIONS = ("relu", "tanh")
OUTPUTS = ("tanh", "clip")
FEATURE_BOUND = 10.0
"""A feature is cut off at so many standard deviations: a reading out of the ordinary saturates, it does not explode."""

_TEXT, _ACTOR = "checkpoint.json", "actor.npz"
_LARGEST_TEXT = 2**24  # bytes
_SHOWN = 8  # differences in a message


@dataclass(frozen=True, kw_only=True)
class Features:
    """The observation as one vector: the named readings one after the other, less their mean, over their scale.

    Attributes:
        keys: keys of the observation, in the order of the vector.
        mean: of each element, in its unit, shape (n,).
        scale: of each element, in its unit, > 0, shape (n,).
    """

    keys: tuple[str, ...]
    mean: FloatArray
    scale: FloatArray

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.mean)

    def __call__(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the features of `observation`, shape (n,), each within +-`FEATURE_BOUND`."""
        scaled = (as_vector(observation, self.keys) - self.mean) / self.scale
        bounded: FloatArray = np.clip(scaled, -FEATURE_BOUND, FEATURE_BOUND)
        return bounded.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Actor:
    """A policy without noise: a perceptron from features to an action. It is called with the observation.

    Attributes:
        features: what it sees.
        layers: weights (outputs, inputs) and biases (outputs,) of each layer; the last one has no activation.
        activation: of the other layers, one of `ACTIVATIONS`.
        output: what brings its last layer between -1 and 1, which stand for low and high: one of `OUTPUTS`.
        low: of the action space, flat, in action units.
        high: of the action space, flat, in action units.
    """

    features: Features
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    activation: str
    output: str
    low: FloatArray
    high: FloatArray

    def __call__(self, observation: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the action for `observation`, in action units, flat."""
        values = self.features(observation)
        *hidden, (weights, biases) = self.layers
        for hidden_weights, hidden_biases in hidden:
            values = _activated(hidden_weights @ values + hidden_biases, self.activation)
        last = (weights @ values + biases).astype(np.float64)
        unit = np.tanh(last) if self.output == "tanh" else np.clip(last, -1.0, 1.0)
        return from_unit(unit, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A policy, and under what it was learned.

    Attributes:
        path: its folder.
        actor: the policy.
        contract: name, version, fingerprint and meaning of the contract.
        training: what the learner says of itself: algorithm, seed, steps.
        sha256: of the actor's file: which weights acted.
    """

    path: Path
    actor: Actor
    contract: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    sha256: str


def from_unit(unit: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the action for `unit`, whose elements from -1 to 1 stand for `low` to `high`; never outside of these."""
    action: FloatArray = np.clip(low + 0.5 * (unit + 1.0) * (high - low), low, high)
    return action


def as_vector(observation: Mapping[str, NDArray[Any]], keys: Sequence[str]) -> FloatArray:
    """Return the readings of `observation` called `keys`, one after the other, shape (n,)."""
    return np.concatenate([np.asarray(observation[key], dtype=np.float64).ravel() for key in keys])


def vector_keys(contract: Contract) -> tuple[str, ...]:
    """Return the keys of the observation that a perceptron can see: all but images.

    Raises:
        UsageError: when there is none.
    """
    space = contract.observation_space
    keys = tuple(key for key, box in space.items() if len(box.shape or ()) <= 1)
    if not keys:
        raise UsageError(f"{contract.name}: every observation is an image; allowed: at least one vector")
    return keys


def flat_action_space(contract: Contract) -> spaces.Box:
    """Return the action space of `contract`, when it is one bounded Box.

    Raises:
        UsageError: when it has several actuators, or no bounds.
    """
    space = contract.action_space
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        raise UsageError(f"{contract.name}: actions in {space} are not supported here; allowed: one bounded Box")
    return space


def save_checkpoint(path: str | Path, contract: Contract, actor: Actor, training: Mapping[str, Any]) -> Path:
    """Write a checkpoint into the folder `path`, which is made; the text is written last.

    Raises:
        UsageError: when there is a checkpoint already.
        RecordError: when it cannot be written.
    """
    folder = Path(path)
    if (folder / _TEXT).exists():
        raise UsageError(f"{folder}: there is a checkpoint already; allowed: a folder without one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / _ACTOR, allow_pickle=False, **_arrays(actor))
        digest = _sha256(folder / _ACTOR)
    except OSError as error:
        raise RecordError(f"{folder}: the checkpoint cannot be written: {error}") from None
    described = {
        "name": contract.name,
        "version": contract.version,
        "fingerprint": contract.fingerprint,
        "meaning": meaning(contract),
    }
    forms = {
        "keys": list(actor.features.keys),
        "layers": len(actor.layers),
        "activation": actor.activation,
        "output": actor.output,
    }
    text = {
        "schema": SCHEMA,
        "contract": described,
        "actor": {**forms, "sha256": digest},
        "training": to_plain(dict(training)),
    }
    write_json(folder / _TEXT, text)
    return folder


def load_checkpoint(path: str | Path, contract: Contract) -> Checkpoint:
    """Read the checkpoint in the folder `path`, to be used under `contract`.

    Raises:
        UsageError: when it was learned under another contract; the message says what differs. Names, topics and
            backend profiles may differ: what has one fingerprint is one contract.
        RecordError: when there is no checkpoint, or it is damaged.
    """
    folder = Path(path)
    text = _text(folder)
    told = text["contract"]
    if told["fingerprint"] != contract.fingerprint:
        raise UsageError(_mismatch(folder, told, contract))
    digest = _sha256(folder / _ACTOR)
    if digest != text["actor"]["sha256"]:
        raise RecordError(f"{folder / _ACTOR}: SHA-256 {digest} is not that of the checkpoint, which was changed")
    actor = _actor(folder, text["actor"])
    return Checkpoint(path=folder, actor=actor, contract=told, training=text["training"], sha256=digest)


def _mismatch(folder: Path, told: Mapping[str, Any], contract: Contract) -> str:
    """Say what the contract of a checkpoint and another one differ in."""
    found = differences(told["meaning"], meaning(contract))
    rows = [f"{where}: {json.dumps(was)}, now {json.dumps(now)}" for where, was, now in found]
    more = f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    learned = f"{told['name']} v{told['version']} ({told['fingerprint'][:16]})"
    asked = f"{contract.name} v{contract.version} ({contract.fingerprint[:16]})"
    return f"{folder}: learned under {learned}, not allowed under {asked}: {'; '.join(rows[:_SHOWN])}{more}"


def _text(folder: Path) -> dict[str, Any]:
    try:
        text: Any = parse_json(read_text_file(folder / _TEXT), max_bytes=_LARGEST_TEXT)
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder}: no checkpoint can be read: {error}") from None
    schema = text.get("schema") if isinstance(text, dict) else None
    if schema != SCHEMA:
        raise RecordError(f"{folder / _TEXT}: schema {schema!r}; allowed: {SCHEMA!r}")
    missing = {"contract", "actor", "training"} - text.keys()
    if missing:
        raise RecordError(f"{folder / _TEXT}: {', '.join(sorted(missing))} is missing")
    return dict(text)


def _actor(folder: Path, text: Mapping[str, Any]) -> Actor:
    for key, allowed in (("activation", ACTIVATIONS), ("output", OUTPUTS)):
        if text[key] not in allowed:
            raise RecordError(f"{folder / _TEXT}: actor.{key} {text[key]!r}; allowed: {', '.join(allowed)}")
    try:
        with np.load(folder / _ACTOR, allow_pickle=False) as arrays:
            features = Features(keys=tuple(text["keys"]), mean=arrays["mean"], scale=arrays["scale"])
            layers = tuple((arrays[f"weights_{i}"], arrays[f"biases_{i}"]) for i in range(text["layers"]))
            low, high = arrays["low"], arrays["high"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RecordError(f"{folder / _ACTOR}: the actor cannot be read: {error}") from None
    return Actor(
        features=features, layers=layers, activation=text["activation"], output=text["output"], low=low, high=high
    )


def _arrays(actor: Actor) -> dict[str, NDArray[Any]]:
    layers = {
        f"{name}_{index}": array
        for index, layer in enumerate(actor.layers)
        for name, array in zip(("weights", "biases"), layer, strict=True)
    }
    return {
        "mean": actor.features.mean,
        "scale": actor.features.scale,
        "low": actor.low,
        "high": actor.high,
        **layers,
    }


def _activated(values: NDArray[np.float32], activation: str) -> NDArray[np.float32]:
    activated: NDArray[np.float32] = np.tanh(values) if activation == "tanh" else np.maximum(values, np.float32(0))
    return activated


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(read_file(path, most_bytes=MOST_DATA_BYTES)).hexdigest()
    except OSError as error:
        raise RecordError(f"{path}: the actor cannot be read: {error}") from None
