"""Policies of Stable-Baselines3, of any of its algorithms or those built on it."""

from __future__ import annotations

import inspect
import io
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import Observation, Policy, PolicyIdentity
from embodied_env.errors import MissingDependencyError, UsageError, described
from embodied_env.policies.array_interface import ArrayInterface, read_model

_MOST_BYTES = 2**32
_VECTOR = "observation"  # name of the input of a policy whose observation is no dict


def load_sb3(location: str, contract: Contract, *, trust: bool = False, deterministic: bool = True) -> Policy:
    """Return the policy that ``model.save(location)`` wrote, on the CPU.

    Its observation space is that of the contract, part of it, or all of it as one flat vector; its action space is that
    of the contract.

    Args:
        location: path of the zip file.
        contract: contract of its observations and actions.
        trust: load it although it is pickle, which executes code.
        deterministic: take the most likely action instead of drawing one.

    Raises:
        UsageError: without `trust`, for a file that is not such a model, or one that does not fit the contract.
        MissingDependencyError: if stable-baselines3 is not installed.
    """
    if not trust:
        raise UsageError(
            f"policy not trusted: 'sb3:{location}' is pickle, which executes code when it is read (expected trust=True "
            "or --trust-policy); export it to ONNX to share it"
        )
    try:
        import stable_baselines3
        from stable_baselines3.common.save_util import load_from_zip_file
    except ImportError:
        raise MissingDependencyError(
            "stable-baselines3", needed_for="an SB3 policy", remedy='pip install "embodied_env[train]"'
        ) from None
    content, sha256 = read_model(location, kind="SB3 policy", most_bytes=_MOST_BYTES)
    try:
        data, parameters, _ = load_from_zip_file(io.BytesIO(content), device="cpu")
        network = _make_network(data or {}, parameters["policy"])
    except Exception as error:
        raise UsageError(f"cannot load SB3 policy {location!r}: {described(error)}") from error
    library = f"stable-baselines3 {stable_baselines3.__version__}"
    identity = PolicyIdentity(name=f"sb3:{location}", format="sb3", sha256=sha256, library=library)
    return Sb3Policy(network, contract, identity, deterministic=deterministic)


def _make_network(data: dict[str, Any], parameters: Any) -> Any:  # noqa: ANN401 - of a library
    """Return the policy network alone: no algorithm, optimizer or replay buffer is needed to act."""
    made = data["policy_class"]
    options = {name: value for name, value in data["policy_kwargs"].items() if name != "device"}
    if "use_sde" in inspect.signature(made).parameters:  # on-policy algorithms pass it apart
        options.setdefault("use_sde", data["use_sde"])
    network = made(data["observation_space"], data["action_space"], lambda _: 0.0, **options)
    network.load_state_dict(parameters)
    network.set_training_mode(False)
    return network


class Sb3Policy:
    """A policy network of Stable-Baselines3; the state of a recurrent one is that of the episode.

    Attributes:
        identity: name and version, for the manifest.
    """

    def __init__(self, network: Any, contract: Contract, identity: PolicyIdentity, *, deterministic: bool) -> None:  # noqa: ANN401
        """Check the spaces of `network` against the contract, with one inference."""
        self.identity, self._network, self._deterministic = identity, network, deterministic
        label, layout = f"SB3 policy {identity.name.partition(':')[2]}", ActionLayout(contract)
        seen = network.observation_space
        self._dtypes = {name: space.dtype for name, space in seen.items()} if isinstance(seen, spaces.Dict) else {}
        shapes = {name: space.shape for name, space in seen.items()} if self._dtypes else {_VECTOR: seen.shape}
        self._interface = ArrayInterface(label, contract, shapes)
        box, expected = network.action_space, (layout.scale.low, layout.scale.high)
        bounds = (box.low, box.high) if isinstance(box, spaces.Box) and box.shape == (layout.size,) else ()
        if not bounds or not all(np.allclose(a, b, atol=1e-6) for a, b in zip(bounds, expected, strict=True)):
            raise UsageError(f"{label}: action space {box} (expected {contract.action_space})")
        self.reset(seed=0, episode_index=0)
        self._interface.check_answer(self._predict(self._interface.zeros()))
        self.reset(seed=0, episode_index=0)

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the protocol's
        """Discard the state of a recurrent network, and seed the draws of one that is not deterministic."""
        self._state: Any = None
        self._starts = np.ones(1, dtype=np.bool_)
        if not self._deterministic:
            import torch

            torch.manual_seed(seed)

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action for `observation`."""
        return self._interface.to_action(self._predict(observation))

    def close(self) -> None:
        """Do nothing: its memory is freed with this object."""

    def _predict(self, observation: Observation) -> Any:  # noqa: ANN401 - an array
        arrays = self._interface.arrays(observation)
        if self._dtypes:
            seen: Any = {name: arrays[name].astype(kind) for name, kind in self._dtypes.items()}
        else:
            seen = arrays[_VECTOR].astype(self._network.observation_space.dtype)
        action, self._state = self._network.predict(
            seen, state=self._state, episode_start=self._starts, deterministic=self._deterministic
        )
        self._starts = np.zeros(1, dtype=np.bool_)
        return action
