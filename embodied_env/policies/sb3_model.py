"""Models of Stable-Baselines3, of any of its algorithms or those built on it."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.contract.argument_checks import checked_flag
from embodied_env.core.plugin_loading import import_optional
from embodied_env.core.policy import PolicyIdentity
from embodied_env.errors import UsageError, described
from embodied_env.policies.policy_model import ArraySpec, Inputs, Outputs, PolicyModel, read_model

_MOST_BYTES = 2**32
_VECTOR = "observation"  # name of the input of a policy whose observation is no dict


def load_sb3(location: str, *, trust: bool = False, deterministic: bool = True) -> PolicyModel:
    """Return the model that ``model.save(location)`` wrote, on the CPU.

    Args:
        location: path of the zip file.
        trust: load it although it is pickle, which executes code.
        deterministic: take the most likely action instead of drawing one.

    Raises:
        UsageError: without `trust`, or for a file that is not such a model.
        MissingDependencyError: if stable-baselines3 is not installed.
    """
    checked_flag("deterministic", deterministic)
    if not trust:
        raise UsageError(
            f"policy not trusted: 'sb3:{location}' is pickle, which executes code when it is read (expected trust=True "
            "or --trust-policy); export it to ONNX to share it"
        )
    stable_baselines3 = import_optional("stable_baselines3", needed_for="an SB3 policy")
    content, sha256 = read_model(location, kind="SB3 policy", most_bytes=_MOST_BYTES)
    try:
        data, parameters, _ = stable_baselines3.common.save_util.load_from_zip_file(io.BytesIO(content), device="cpu")
        network = _make_network(data or {}, parameters["policy"])
    except Exception as error:
        raise UsageError(f"cannot load SB3 policy {location!r}: {described(error)}") from error
    library = f"stable-baselines3 {stable_baselines3.__version__}"
    identity = PolicyIdentity(name=f"sb3:{location}", format="sb3", sha256=sha256, library=library)
    return Sb3Model(network, identity, deterministic=deterministic)


def _make_network(data: dict[str, Any], parameters: Any) -> Any:  # noqa: ANN401 - of a library
    """Return the policy network, without algorithm, optimizer and replay buffer."""
    made = data["policy_class"]
    options = {name: value for name, value in data["policy_kwargs"].items() if name != "device"}
    if "use_sde" in inspect.signature(made).parameters:  # on-policy algorithms pass it apart
        options.setdefault("use_sde", data["use_sde"])
    network = made(data["observation_space"], data["action_space"], lambda _: 0.0, **options)
    network.load_state_dict(parameters)
    network.set_training_mode(False)
    return network


class Sb3Model(PolicyModel):
    """A policy network of Stable-Baselines3, whose recurrent state is that of the episode.

    Its input is that of its observation space, or ``observation``, with the channels of images last, and ``action`` is
    clipped to its action space.
    """

    def __init__(self, network: Any, identity: PolicyIdentity, *, deterministic: bool) -> None:  # noqa: ANN401
        """Read the spaces of `network`, or raise UsageError for an action space that is not a Box."""
        self.identity, self._network, self._deterministic = identity, network, deterministic
        seen, box = network.observation_space, network.action_space
        self._is_dict = isinstance(seen, spaces.Dict)
        parts = seen.spaces if self._is_dict else {_VECTOR: seen}
        if not isinstance(box, spaces.Box):
            raise UsageError(f"policy {identity.name}: action space {box} (expected a Box)")
        self.inputs = {name: _spec_of(space) for name, space in parts.items()}
        self.outputs = {"action": ArraySpec(shape=box.shape, dtype=box.dtype, low=box.low, high=box.high)}
        self.reset(seed=0, episode_index=0)

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the protocol's
        """Discard the state of a recurrent network, and seed the draws of a policy that draws."""
        self._state: Any = None
        self._starts = np.ones(1, dtype=np.bool_)
        if not self._deterministic:
            import torch

            self._draws = torch.Generator().manual_seed(seed).get_state()

    def infer(self, inputs: Inputs, /) -> Outputs:
        """Return the action of one inference."""
        arrays = {name: np.asarray(inputs[name]).astype(spec.dtype) for name, spec in self.inputs.items()}
        seen: Any = arrays if self._is_dict else arrays[_VECTOR]
        with nullcontext() if self._deterministic else self._own_draws():
            action, self._state = self._network.predict(
                seen, state=self._state, episode_start=self._starts, deterministic=self._deterministic
            )
        self._starts = np.zeros(1, dtype=np.bool_)
        return {"action": action}

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Draw from the state of this object, not from that of the program, which may be training."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._draws)
            yield
            self._draws = torch.get_rng_state()


def _spec_of(space: spaces.Space[Any]) -> ArraySpec:
    """Return the spec of the input, with vectors in float32 and image channels first."""
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

    shape, is_image = space.shape or (), is_image_space(space)
    if is_image and is_image_space_channels_first(space):
        shape = (*shape[1:], shape[0])
    is_vector = isinstance(space, spaces.Box) and not is_image
    return ArraySpec(shape=shape, dtype=np.dtype(np.float32 if is_vector else space.dtype))
