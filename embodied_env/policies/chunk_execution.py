"""Execution of action chunks, with the next one computed in between or during the motion."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.value_checks import one_of
from embodied_env.core.policy import (
    CHUNK_MODES,
    AccountedPolicy,
    BoundedPolicy,
    InstructedPolicy,
    NoAction,
    Observation,
    Policy,
    StepObserver,
    find_account_name,
    find_continuing,
    find_n_action_steps,
    find_required_sensors,
)
from embodied_env.core.types import CHUNK
from embodied_env.errors import PolicyError, UsageError, described
from embodied_env.policies.policy_calls import PolicyCalls
from embodied_env.policies.policy_model import ModelPolicy

OVERLAP = 4  # steps in which ``crossfade`` blends two chunks, and which ``rtc`` adds to the prefix
DECAY = 0.01  # decay of the weights of ``ensemble``, from the oldest chunk to the newest, as in ACT
UNDERRUN = "chunk underrun"  # reason of a step without an action
TIMEOUT_S = 60.0
"""Time limit of the first chunk of an episode and of `reset`; longer than the timeouts of policy servers."""

_log = logging.getLogger(__name__)

_Answered = tuple[Any, list[Any] | None, Mapping[str, Any] | None, str | None]
"""The answer of a policy, the actions of its chunk if it is one, the account of the inference, and its prompt."""

_NO_CHUNK = NoAction(UNDERRUN)
_MOST_CHUNKS = 200  # chunks in one action: the account of a step is bounded
_MOST_ACTIONS = 100_000  # actions in a chunk: splitting it takes time and memory
_LATENCIES = 10  # inferences, of which the greatest latency counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """A chunk of one inference."""

    number: int  # counted from 0 in an episode
    born: int  # step whose observation it was computed from; the reset is 0
    first: int  # step in which it is used for the first time
    overlap: int  # steps in which it takes over, before its last one
    actions: Sequence[Any]
    returned: Sequence[Any] | None  # `actions` and those that are not executed; None: the policy returned an action
    prompt: str | None  # last one that the policy has taken; None: none

    def index(self, step: int) -> int:
        """Return the index of the action for `step`, the age of the chunk in steps."""
        return step - 1 - self.born

    def left(self, step: int) -> int:
        """Return the number of its actions for `step` and later."""
        return max(0, len(self.actions) - self.index(step))

    def share(self, step: int) -> float:
        """Return its weight against older chunks, which increases to 1 as it takes over."""
        passed = step - self.first
        return 1.0 if passed >= self.overlap else (passed + 1) / (self.overlap + 1)


class ChunkRunner:
    """A policy that returns one action per step, from the actions and chunks of another policy.

    With ``wait``, and in lockstep, the world waits for each inference. Otherwise the other policy runs in its
    own thread, with at most one inference in progress, which begins early enough for twice the greatest of the last
    latencies. A step for which no chunk has an action gets `NoAction`.
    """

    def __init__(
        self,
        policy: Policy,
        mode: str = "wait",
        *,
        pacing: str = "lockstep",
        overlap: int = OVERLAP,
        timeout_s: float = TIMEOUT_S,
        wait_s: float | None = None,
    ) -> None:
        """Wrap `policy` with the pacing of the environment (``env.unwrapped.pacing``).

        Args:
            policy: the other policy; only ``wait`` and lockstep allow one that returns single actions.
            mode: ``wait`` (the next chunk is computed when the last one has ended), ``replace`` (the next chunk takes
                over at once), ``crossfade`` (over `overlap` steps), ``ensemble`` (all chunks with an action for the
                step, with weights exp(-0.01 i) from the oldest to the newest), or ``rtc`` (the policy continues the
                chunk that is being executed, `overlap` steps early).
            pacing: ``realtime`` or ``lockstep``.
            overlap: see `mode`.
            timeout_s: time limit of the first chunk of an episode, and of `reset`; then a `PolicyError` is raised.
            wait_s: time that a step may wait before a watchdog stops the robot (`longest_wait_s`), for every inference
                but the first; None: no limit.

        Raises:
            UsageError: for an unknown mode, and for ``rtc`` with a policy that cannot continue a chunk.
        """
        if mode not in CHUNK_MODES:
            raise UsageError(f"unknown mode of chunks: {one_of(mode, CHUNK_MODES)}")
        self._continuing = find_continuing(policy) if mode == "rtc" else None
        if mode == "rtc" and self._continuing is None:
            problem = f"policy that cannot continue a chunk: {policy.identity.name!r}"
            raise UsageError(f"{problem} (expected one with real-time chunking, RTC); use crossfade")
        self.policy, self.mode, self.identity = policy, mode, policy.identity
        self.required_sensors = find_required_sensors(policy)
        self._overlap = overlap if mode in ("crossfade", "rtc") else 0
        self._waits = mode == "wait" or pacing == "lockstep"
        self._n_action_steps = find_n_action_steps(policy)
        self._accounted = policy if isinstance(policy, AccountedPolicy) else None
        self._account_name = find_account_name(policy)
        self._observer = policy if isinstance(policy, StepObserver) else None
        if isinstance(policy, ModelPolicy):
            policy.observes_all = True
        self._calls = PolicyCalls(in_thread=not self._waits, timeout_s=timeout_s)
        self._latencies: deque[int] = deque(maxlen=_LATENCIES)
        self._wait_s, self._is_warm = wait_s, False  # warm: there was an answer
        self._prompt: str | None = None  # last one of `instruct`
        self._taken: str | None = None  # last one that the policy has taken, in its thread
        self._begin()
        if not self._waits or wait_s is None or not isinstance(policy, BoundedPolicy):
            return
        if (bound_s := policy.bound_wait(wait_s)) > wait_s:
            text = "%s: timeout_s of %g s (expected at most %g s, before the watchdog stops the robot)"
            _log.warning(text, policy.identity.name, bound_s, wait_s)

    def _begin(self) -> None:
        """Discard the state of an episode, except the latencies."""
        self._step = self._answers = 0
        self._is_begun = False  # the first inference has ended, or its time
        self._chunks: list[Chunk] = []  # oldest first
        self._last: Chunk | None = None  # chunk of the last answer, if it has an action for a later step
        self._request: tuple[int, Future[Any]] | None = None  # step of its observation
        self._missing = _NO_CHUNK
        self._counts = dict.fromkeys(("underruns", "expired", "failed"), 0)
        self._accounts: dict[str, Mapping[str, Any]] = {}

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Reset the policy, after the inference in progress, whose answer is discarded."""
        self._begin()
        self._calls.wait(self._calls.submit(partial(self.policy.reset, seed=seed, episode_index=episode_index)))

    def instruct(self, instruction: str) -> None:
        """Pass a prompt to the policy for the next inference, without waiting."""
        if isinstance(self.policy, InstructedPolicy):
            self._prompt = instruction
            self._calls.submit(partial(self._instruct, self.policy, instruction))

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the next action or `NoAction`, or raise PolicyError for an error of the policy."""
        self._step, self._accounts = self._step + 1, {}
        self._calls.check()
        if self._request is not None and self._request[1].done():
            self._receive(*self._request)
        if self._request is None and self._is_due(self._step):
            call = partial(self._infer, observation, self._prefix())
            if self._waits:
                self._add(self._step - 1, call(), is_awaited=True)
            else:
                self._request = self._step - 1, self._calls.submit(call)
        elif self._observer is not None:
            self._calls.submit(partial(self._observer.observe, observation))
        if self._request is not None and not self._is_begun:  # the robot is at rest
            self._is_begun = True
            is_bounded = self._is_warm and self._wait_s is not None
            if not is_bounded or futures.wait([self._request[1]], self._wait_s).done:
                self._receive(*self._request, is_awaited=True)
        return self._act()

    @property
    def has_due(self) -> bool:
        """Whether the next step needs no inference."""
        return not self._is_due(self._step + 1)

    def begin(self, answer: Any) -> Any:  # noqa: ANN401 - policies return anything
        """Return the next action from what the policy returned for its observation."""
        self._step, self._accounts = self._step + 1, {}
        self._add(self._step - 1, (answer, split_chunk(answer), None, self._taken), is_awaited=True)
        return self._act()

    def upcoming(self, count: int) -> list[Any]:
        """Return at most `count` actions of the current chunks for the steps after this one."""
        weighed = (self._weigh(step) for step in range(self._step + 1, self._step + 1 + count))
        return [self._blend(step, used) for step, used in enumerate(takewhile(bool, weighed), self._step + 1)]

    def take_accounts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the accounts of the last action, by the names under which to annotate them.

        These are ``chunk`` and the account of an inference. ``chunk`` is that of a step with an action of a chunk, or
        in real-time modes of each step. In the step in which a chunk takes effect it has ``actions``, which are
        recorded. ``earlier_prompt`` is that of an action, or a part of it, whose inference began before the last
        `instruct`.
        """
        accounts, self._accounts = self._accounts, {}
        return accounts

    def stop(self) -> None:
        """Join the thread after its inference, idempotently, or raise PolicyError if it hangs."""
        self._calls.stop()

    def close(self) -> None:
        """Join the thread, and close the policy, unless it hangs."""
        self.stop()
        if not self._calls.is_running:
            self.policy.close()

    # -------------------------------------------------------------------------------------------------------- inference

    def _is_due(self, step: int) -> bool:
        if self.mode == "ensemble" or not self._chunks:
            return True
        newest = self._chunks[-1]
        planned = len(newest.actions[: self._n_action_steps])
        early = min(self._overlap, planned // 2)
        if not self._waits:
            early += 2 * max(self._latencies, default=planned) + 1
        return planned - newest.index(step) <= early

    def _prefix(self) -> tuple[int, int] | None:
        """Return the arguments of `continue_chunk`, or None unless the last chunk is executed."""
        newest = self._last
        if newest is None or not newest.left(self._step):
            return None
        return newest.index(self._step), max(self._latencies, default=0)

    def _instruct(self, policy: InstructedPolicy, instruction: str) -> None:
        if policy.instruct(instruction) is not False:
            self._taken = instruction

    def _infer(self, observation: Observation, prefix: tuple[int, int] | None) -> _Answered:
        if prefix is not None and self._continuing is not None:
            self._continuing.continue_chunk(executed=prefix[0], delay=prefix[1])
        answer = self.policy(observation)
        account = None if self._accounted is None else self._accounted.take_account()
        return answer, split_chunk(answer), account, self._taken  # here, before the policy may write to its answer

    def _receive(self, born: int, future: Future[Any], *, is_awaited: bool = False) -> None:
        """Add the chunk of the inference once it has ended, or raise the policy's error."""
        self._request = None
        self._add(born, self._calls.wait(future), is_awaited=is_awaited)

    def _add(self, born: int, answered: _Answered, *, is_awaited: bool) -> None:
        (answer, chunk, account, prompt), self._last = answered, None
        if account is not None:
            self._accounts[self._account_name] = account
        if isinstance(answer, NoAction):
            self._missing = answer
            self._counts["failed"] += 1
            return
        self._is_warm = True
        actions, step = chunk or [answer] * self._waits, self._step
        if not actions:
            found = "one action" if isinstance(answer, Mapping | np.ndarray) else type(answer).__name__
            raise PolicyError(
                f"policy returned {found} (expected a chunk of actions); use the mode 'wait' (--chunks wait)"
            )
        if self.mode == "wait":
            actions = actions[: self._n_action_steps]
        if not is_awaited:
            self._latencies.append(step - 1 - born)
        is_faded = self.mode == "crossfade" and self._chunks
        overlap = min(self._overlap, self._chunks[-1].left(step), born + len(actions) - step) if is_faded else 0
        new = Chunk(
            number=self._answers, born=born, first=step, overlap=overlap, actions=actions, returned=chunk, prompt=prompt
        )
        self._answers, self._missing = self._answers + 1, _NO_CHUNK
        if not new.left(step):
            self._counts["expired"] += 1
            return
        self._last = new
        self._chunks = [*self._chunks, new][-_MOST_CHUNKS:]

    # ---------------------------------------------------------------------------------------------------------- actions

    def _act(self) -> Any:  # noqa: ANN401 - of the action space
        step, used = self._step, self._weigh(self._step)
        self._chunks = [chunk for chunk, _ in used]  # one that was replaced never returns
        account: dict[str, Any] = dict.fromkeys(("id", "born", "age", "weight", "length"))
        is_chunked = self.mode != "wait"
        action: Any = self._missing
        if used:
            action = self._blend(step, used)
            (*older, (newest, weight)) = used
            account = {"id": newest.number, "born": newest.born, "age": newest.index(step), "weight": weight}
            account["older"] = [[chunk.number, chunk.born, share] for chunk, share in older]
            account["length"] = len(newest.returned or newest.actions)
            if outdated := [(chunk.prompt, share) for chunk, share in used if chunk.prompt not in (None, self._prompt)]:
                share = sum(share for _, share in outdated)
                account["earlier_prompt"] = {"instruction": outdated[-1][0], "weight": share}
            if newest.returned is not None:
                is_chunked = True
                if newest.first == step:
                    account["actions"] = newest.returned
        else:
            self._counts["underruns"] += 1
        if is_chunked:
            self._accounts[CHUNK] = {"mode": self.mode, "older": [], **account, **self._counts}
        return action

    def _blend(self, step: int, used: Sequence[tuple[Chunk, float]]) -> Any:  # noqa: ANN401 - of the action space
        return blend([chunk.actions[chunk.index(step)] for chunk, _ in used], [weight for _, weight in used])

    def _weigh(self, step: int) -> list[tuple[Chunk, float]]:
        """Return the chunks for `step`, oldest first, with weights that add up to 1."""
        usable = [chunk for chunk in self._chunks if chunk.left(step)]
        if self.mode == "ensemble":
            weights = [math.exp(-DECAY * place) for place in range(len(usable))]
            total = sum(weights)
            return [(chunk, weight / total) for chunk, weight in zip(usable, weights, strict=True)]
        used: list[tuple[Chunk, float]] = []
        for chunk in usable:
            share = chunk.share(step)
            used = [*((older, weight * (1.0 - share)) for older, weight in used if share < 1.0), (chunk, share)]
        return used


def longest_wait_s(contract: Contract) -> float:
    """Return how long a step in real time may wait, two control periods less than the watchdog."""
    return max(0.0, (contract.safety.watchdog.stop_steps - 2) * contract.control_period_s)


def split_chunk(answer: Any) -> list[Any] | None:  # noqa: ANN401 - policies return anything
    """Return the actions of a chunk (n, n_joints), or of a dict of them, or None.

    A single action gives None, and so does anything else. The actions are copies of arrays and tensors, which the
    policy may write to later. Raises PolicyError for a chunk too long.
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


def blend(actions: Sequence[Any], weights: Sequence[float]) -> Any:  # noqa: ANN401 - of the action space
    """Return the weighted sum of actions, or a single one as it is."""
    if len(actions) == 1:
        return actions[0]
    try:
        if isinstance(actions[0], Mapping):
            return {name: blend([action[name] for action in actions], weights) for name in actions[0]}
        rows = np.array([np.asarray(action) for action in actions])
        return np.tensordot(np.asarray(weights), rows.astype(np.float64, casting="same_kind"), axes=1)  # real numbers
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"chunks cannot be blended: {described(error)}") from error
