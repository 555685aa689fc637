"""Policies in the format ONNX, computed by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.core.arguments import checked_count
from embodied_env.core.policy import Observation, Policy, PolicyIdentity
from embodied_env.errors import MissingDependencyError, UsageError, described
from embodied_env.policies.array_interface import ArrayInterface, read_model
from embodied_env.policies.onnx_graph import MOST_BYTES, check_graph

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


def load_onnx(
    location: str, contract: Contract, *, providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 1
) -> Policy:
    """Return the policy of an ONNX file: inputs with a batch axis, named like the observation or one flat vector.

    Its one output is an action (batch, n_joints) or a chunk (batch, n, n_joints), in action units.

    Args:
        location: path of the file.
        contract: contract of its observations and actions.
        providers: execution providers of onnxruntime, in order of preference.
        threads: number of threads of an inference.

    Raises:
        UsageError: for a file that is not such a model, or does not fit the contract.
        MissingDependencyError: if onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError(
            "onnxruntime", needed_for="an ONNX policy", remedy='pip install "embodied_env[onnx]"'
        ) from None
    data, sha256 = read_model(location, kind="ONNX policy", most_bytes=MOST_BYTES)
    check_graph(location, data)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = checked_count("threads", threads, at_least=1)
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4  # errors are raised
    known = onnxruntime.get_available_providers()
    if wrong := [name for name in providers if name not in known]:
        raise UsageError(f"unknown provider of onnxruntime: {wrong[0]!r} (expected one of: {', '.join(known)})")
    try:
        session = onnxruntime.InferenceSession(data, settings, providers=list(providers))
    except Exception as error:  # noqa: BLE001 - onnxruntime has errors of many types
        raise UsageError(f"cannot load ONNX policy {location!r}: {described(error)}") from None
    library = f"onnxruntime {onnxruntime.__version__}"
    identity = PolicyIdentity(name=f"onnx:{location}", format="onnx", sha256=sha256, library=library)
    return OnnxPolicy(session, contract, identity)


class OnnxPolicy:
    """A stateless policy of a session of onnxruntime.

    Attributes:
        identity: name and version, for the manifest.
    """

    def __init__(self, session: Any, contract: Contract, identity: PolicyIdentity) -> None:  # noqa: ANN401 - untyped
        """Check inputs and output against the contract, with one inference."""
        self.identity, self._session = identity, session
        label, inputs = f"ONNX policy {identity.name.partition(':')[2]}", session.get_inputs()
        if wrong := [each for each in inputs if each.type not in _DTYPES or not each.shape]:
            found = f"{wrong[0].type} {wrong[0].shape}"
            raise UsageError(f"{label}: input {wrong[0].name!r} is {found} (expected a tensor with a batch axis)")
        if len(outputs := session.get_outputs()) != 1:
            raise UsageError(f"{label}: outputs {[each.name for each in outputs]} (expected one, the action)")
        self._dtypes = {each.name: _DTYPES[each.type] for each in inputs}
        self._is_batched = all(not isinstance(each.shape[0], int) for each in inputs)
        shapes = {each.name: [n if isinstance(n, int) else None for n in each.shape[1:]] for each in inputs}
        self._interface = ArrayInterface(label, contract, shapes)
        try:
            (answer,) = self._run([self._interface.zeros()])
        except Exception as error:  # noqa: BLE001 - as above
            raise UsageError(f"{label}: inference of zeros failed: {described(error)}") from None
        self._interface.check_answer(answer)

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Do nothing: it has no state."""

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action or chunk for `observation`."""
        (answer,) = self._run([observation])
        return self._interface.to_action(answer)

    def act_batch(self, observations: Observation, mask: NDArray[np.bool_], /) -> Sequence[Any]:
        """Return the action of each row where `mask` is True, by one inference if the model's batch is not fixed."""
        slots = np.flatnonzero(mask).tolist()
        rows = [{key: values[slot] for key, values in observations.items()} for slot in slots]
        answers = self._run(rows) if self._is_batched else [answer for row in rows for answer in self._run([row])]
        found = dict(zip(slots, map(self._interface.to_action, answers), strict=True))
        return [found.get(slot) for slot in range(len(mask))]

    def close(self) -> None:
        """Do nothing: onnxruntime frees its session with this object."""

    def _run(self, observations: Sequence[Observation]) -> list[NDArray[Any]]:
        rows = [self._interface.arrays(observation) for observation in observations]
        feeds = {name: np.stack([row[name] for row in rows]).astype(kind) for name, kind in self._dtypes.items()}
        (answers,) = self._session.run(None, feeds)
        array = np.asarray(answers)
        if array.ndim == 0 or len(array) != len(rows):
            raise UsageError(f"answer of the shape {array.shape} (expected a batch of {len(rows)})")
        return list(array)
