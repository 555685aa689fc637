"""Limits of an episode's first inputs and actions, which wrong units or statistics exceed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import Observation
from embodied_env.policies.policy_model import ModelPolicy, NormalizingModel
from embodied_env.safety.action_parsing import MalformedActionError, parse_action

MOST_DEVIATIONS = 6.0  # largest distance of an input from the statistics of its training, in standard deviations
MOST_OUTSIDE = 0.5  # largest distance of an action from its space, as a share of the width of the space
_MOST_SHOWN = 10


def find_implausible(policy: object, contract: Contract, observation: Observation, actions: Sequence[Any]) -> list[str]:
    """Return a line for each input and joint beyond the limits right after a reset."""
    lines = [*_find_inputs(policy, observation), *_find_joints(contract, actions)]
    return lines[:_MOST_SHOWN] + ([f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else [])


def _find_inputs(policy: object, observation: Observation) -> Iterator[str]:
    if not isinstance(policy, ModelPolicy):
        return
    found = policy.interface.deviations(observation)
    for name, own in policy.model.normalizations.items() if isinstance(policy.model, NormalizingModel) else ():
        if (values := np.asarray(policy.inputs.get(name, own.first))).ndim == 1:
            found += [(f"{name}[{index}]", each) for index, each in enumerate(own.deviations(values).tolist())]
    for name, deviations in found:
        if not deviations <= MOST_DEVIATIONS:
            expected = f"expected at most {MOST_DEVIATIONS:g} in an observation of a reset"
            yield f"input {name} is {deviations:.3g} standard deviations away from its statistics ({expected})"


def _find_joints(contract: Contract, actions: Sequence[Any]) -> Iterator[str]:
    layout = ActionLayout(contract)
    low, high = layout.scale.low, layout.scale.high
    rows = []
    for action in actions:
        with suppress(MalformedActionError):  # the gate reports it
            rows.append(parse_action(action, layout))
    outside = np.array([np.maximum(low - row, row - high) for row in rows]).reshape(-1, layout.size)
    for index in np.flatnonzero((outside > MOST_OUTSIDE * (high - low)).any(axis=0)).tolist():
        value = rows[int(outside[:, index].argmax())][index]
        expected = f"expected {low[index]:g} to {high[index]:g}, and at most half of that width outside"
        yield f"action of {layout.joints[index]} is {value:.6g} ({expected})"
