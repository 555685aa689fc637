"""Execution of action chunks: one action per step, and a new chunk when none is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.core.policy import AccountedPolicy, Observation, Policy, StepObserver, find_n_action_steps
from embodied_env.errors import PolicyError

_MOST_ACTIONS = 100_000  # in a chunk: splitting it takes time and memory


class ChunkRunner:
    """A policy that returns one action per step, from the actions and chunks of another policy.

    Attributes:
        policy: the other policy.
        identity: its identity.
    """

    def __init__(self, policy: Policy) -> None:
        """Wrap `policy`."""
        self.policy, self.identity = policy, policy.identity
        self._n_action_steps = find_n_action_steps(policy)
        self._due: deque[Any] = deque()

    @property
    def has_due(self) -> bool:
        """Whether an action of the last chunk is left, so that the next step needs no inference."""
        return bool(self._due)

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Discard the rest of the chunk, and reset the policy."""
        self._due.clear()
        self.policy.reset(seed=seed, episode_index=episode_index)

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the next action of the chunk, or of a new one."""
        if not self._due:
            return self.begin(self.policy(observation))
        if isinstance(self.policy, StepObserver):
            self.policy.observe(observation)
        return self._due.popleft()

    def begin(self, answer: Any) -> Any:  # noqa: ANN401 - policies return anything
        """Return the first action of what the policy has returned, and keep those of a chunk to execute next."""
        chunk = split_chunk(answer)
        if chunk is None:
            return answer
        self._due.extend(chunk[1 : self._n_action_steps])
        return chunk[0]

    def take_accounts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the accounts of the last action, to annotate its step: that of an inference, if there is one."""
        account = self.policy.take_account() if isinstance(self.policy, AccountedPolicy) else None
        return {} if account is None else {"inference": account}

    def stop(self) -> None:
        """Do nothing: there is no thread."""

    def close(self) -> None:
        """Close the policy."""
        self.policy.close()


def split_chunk(answer: Any) -> list[Any] | None:  # noqa: ANN401 - policies return anything
    """Return the actions of a chunk (n, n_joints), or of a dict of them; None for anything else, such as one action.

    They are copies of arrays and tensors, which the policy may write to later. Raises PolicyError for a chunk too long.
    """
    parts = answer if isinstance(answer, Mapping) else {"": answer}
    try:
        (count,) = {shape[0] if len(shape) == 2 else 0 for shape in map(np.shape, parts.values())}
        if 0 < count <= _MOST_ACTIONS:
            parts = {name: _copy(part) for name, part in parts.items()}
            actions = [{name: part[index] for name, part in parts.items()} for index in range(count)]
            return actions if isinstance(answer, Mapping) else [action[""] for action in actions]
    except Exception:  # noqa: BLE001 - a foreign object may raise anything
        return None
    if count > _MOST_ACTIONS:
        raise PolicyError(f"chunk too long: {count} actions (expected at most {_MOST_ACTIONS}); return it in parts")
    return None


def _copy(part: Any) -> Any:  # noqa: ANN401 - policies return anything
    if hasattr(part, "detach"):  # a torch tensor, possibly on a device
        return part.detach().cpu().clone()
    return part.copy() if isinstance(part, np.ndarray) else part
