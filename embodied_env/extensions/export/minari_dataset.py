"""A Minari dataset in Minari's own Arrow storage, written by Minari.

An episode of T steps has T + 1 observations and T + 1 entries of ``infos``. The first entry belongs to the reset, so
that the results of a step have the index of the next observation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.extensions.export.exported_episodes import (
    Arrays,
    EpisodeEnd,
    EpisodeReader,
    ExportedStep,
    Leaves,
    library,
    named,
)
from embodied_env.record.manifest import name_of_policy, write_json

THE_ACTION = (
    "actions: see infos['action_source'][t + 1]; policies learn from requested actions, because the safety gate is a "
    "part of the environment. infos['action_applied'][t + 1]: executed at step t"
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*-v\d+")


class MinariDataset:
    """Writes ``data/`` of a dataset named as the folder, with ``-v0`` if that has no version."""

    def __init__(self, out: Path, source: EpisodeReader, _files: ExitStack) -> None:
        minari = library("minari")
        library("pyarrow")
        library("PIL.Image")
        storage = library("minari.dataset.minari_storage")
        self._buffer = library("minari.data_collector.episode_buffer").EpisodeBuffer
        self._out, self._source = out, source
        (out / "data").mkdir()
        self._storage = storage.MinariStorage.new(
            out.resolve() / "data",  # Minari joins a relative one to itself
            observation_space=_space(source.observation, source.contract.observation_space, source),
            action_space=_space(source.action, source.contract.action_space, source),
            env_spec=_spec(source.contract),
            data_format="arrow",
            jpeg_encoding=False,  # lossy
        )
        name = out.name.removesuffix(".partial")
        self._id = name if _ID.fullmatch(name) else f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}-v0"
        self._version = str(minari.__version__)
        self._steps: list[ExportedStep] = []

    def step(self, step: ExportedStep) -> None:
        """Buffer one step, since Minari stores whole episodes."""
        self._steps.append(step)

    def end(self, ending: EpisodeEnd) -> None:
        """Write the episode."""
        steps, self._steps = self._steps, []
        source = self._source
        observations = [*(step.observation for step in steps), ending.observation]
        unknown = {key: leaf.unknown() for key, leaf in source.applied.items()}  # of the reset
        applied = [unknown, *(step.action_applied for step in steps)]
        evaluator = [*(step.evaluator for step in steps), ending.evaluator]
        infos: dict[str, Any] = {
            **_columns("action_applied", source.applied, applied),
            "action_source": ["", *(step.action_source for step in steps)],
            "is_success": [False, *(step.is_success for step in steps)],
            **_columns("evaluator", source.evaluator, evaluator),
        }
        buffer = self._buffer(
            id=ending.episode_index,
            seed=ending.seed,
            observations=_stacked(source.observation, observations),
            actions=_stacked(source.action, [step.action for step in steps]),
            rewards=[step.reward for step in steps],
            terminations=[step.terminated for step in steps],
            truncations=[step.truncated for step in steps],
            infos=infos,
        )
        self._storage.update_episodes([buffer])
        metadata = {"end_reason": ending.end_reason, "ended": ending.ended, "world_seed": ending.world_seed}
        self._storage.update_episode_metadata([metadata], [ending.episode_index])

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Write Minari's metadata, and ours to a separate file."""
        self._storage.update_metadata(
            {
                "dataset_id": self._id,
                "minari_version": self._version,
                "algorithm_name": str(name_of_policy(metadata["policy"])),
                "description": "{contract[name]} on {backend} ({world}). ".format_map(metadata) + THE_ACTION,
            }
        )
        write_json(self._out / "metadata.json", {**metadata, "the_action": THE_ACTION, "dataset_id": self._id})


def _spec(contract: Contract) -> EnvSpec:
    """Return the unwrapped MuJoCo environment's spec, for Minari's `recover_environment`.

    It names a shipped contract. The user passes any other to `recover_environment`: a dataset neither contains nor
    opens what a contract executes.
    """
    shipped = contract.name in shipped_files() and load_contract(contract.name).fingerprint == contract.fingerprint
    return EnvSpec(
        id=contract.environment_id,
        entry_point="embodied_env:EmbodiedEnv",
        kwargs={"contract": contract.name if shipped else None},
        order_enforce=False,
        disable_env_checker=True,
    )


def _space(leaves: Leaves, of_contract: gymnasium.Space[Any], source: EpisodeReader) -> gymnasium.Space[Any]:
    """Return the space of the contract, or an unbounded one if wrappers may have changed it."""
    if not source.has_wrappers:
        return of_contract
    boxes: dict[str, spaces.Space[Any]] = {}
    for key, leaf in leaves.items():
        dtype = np.dtype(leaf.dtype)
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        boxes[key] = spaces.Box(low, high, leaf.shape, dtype.type)
    return boxes[""] if list(boxes) == [""] else spaces.Dict(boxes)


def _stacked(leaves: Leaves, values: list[Arrays]) -> NDArray[Any] | dict[str, NDArray[Any]]:
    stacked = {key: np.stack([arrays[key] for arrays in values]) for key in leaves}
    return stacked[""] if list(stacked) == [""] else stacked


def _columns(prefix: str, leaves: Leaves, values: list[Arrays]) -> dict[str, NDArray[Any]]:
    """Return the stacked arrays under flat names, because Minari does not read dicts in infos."""
    return {
        named(prefix, key): np.stack([arrays[key].reshape(leaf.shape or (1,)) for arrays in values])
        for key, leaf in leaves.items()
    }
