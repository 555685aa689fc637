"""Models in the format ONNX, computed by onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.argument_checks import checked_count
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.contract.value_checks import one_of
from embodied_env.core.plugin_loading import import_optional
from embodied_env.core.policy import PolicyIdentity
from embodied_env.core.protobuf import DamagedMessageError, read_fields
from embodied_env.errors import UsageError, described, did_you_mean
from embodied_env.policies.policy_model import ArraySpec, BatchModel, Inputs, Outputs, PolicyModel, read_model

_DTYPES: Mapping[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}

_NAME = re.compile(r"[\w-]{1,100}")  # name of a shipped policy
_MOST_THREADS = 1024
_LONGEST_S = 60.0  # time limit of the first inference

MOST_BYTES = 2**30
MOST_FIELDS = 500_000  # about 30,000 nodes; some seconds
_DEEPEST = 32  # messages within messages

_MESSAGES: Mapping[str, Mapping[int, str]] = {  # message -> number of a field -> message in it, as in onnx.proto
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor
_DOMAIN = {"node": 7, "function": 10}
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}  # of the documented operators of onnxruntime


def find_onnx(location: str) -> Path:
    """Return the file at a path or of a shipped policy, or raise UsageError for another name."""
    if _NAME.fullmatch(location) is None or Path(location).is_file():
        return Path(location)
    known = shipped_files("policies", ".onnx")
    if location not in known:
        expected = f"a file, or one of: {', '.join(sorted(known)) or 'none'}"
        raise UsageError(f"unknown ONNX policy: {location!r} (expected {expected}){did_you_mean(location, known)}")
    return known[location]


def load_onnx(location: str, *, providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 1) -> PolicyModel:
    """Return the model of an ONNX file, each of whose inputs and outputs has a batch axis.

    Args:
        location: path of the file, or the name of a shipped policy.
        providers: execution providers of onnxruntime, in order of preference.
        threads: number of threads of an inference.

    Raises:
        UsageError: for a file that is not such a model.
        MissingDependencyError: if onnxruntime is not installed.
    """
    onnxruntime = import_optional("onnxruntime", needed_for="an ONNX policy")
    data, sha256 = read_model(str(find_onnx(location)), kind="ONNX policy", most_bytes=MOST_BYTES)
    check_graph(location, data)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = checked_count("threads", threads, at_least=1, at_most=_MOST_THREADS)
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4  # errors are raised
    settings.add_session_config_entry("session.load_model_format", "ONNX")  # that has been checked, no other one
    if not isinstance(providers, Sequence) or isinstance(providers, str) or not providers:
        raise UsageError(f"invalid providers={providers!r:.80} (expected a list of at least one name)")
    known = onnxruntime.get_available_providers()
    if wrong := [name for name in providers if name not in known]:
        raise UsageError(f"unknown provider of onnxruntime: {one_of(wrong[0], known)}")
    try:
        session = onnxruntime.InferenceSession(data, settings, providers=list(providers))
    except Exception as error:  # noqa: BLE001 - onnxruntime has errors of many types
        raise UsageError(f"cannot load ONNX policy {location!r}: {described(error)}") from None
    library = f"onnxruntime {onnxruntime.__version__}"
    return OnnxModel(session, PolicyIdentity(name=f"onnx:{location}", format="onnx", sha256=sha256, library=library))


class OnnxModel(BatchModel):
    """A stateless model of a session of onnxruntime."""

    def __init__(self, session: Any, identity: PolicyIdentity) -> None:  # noqa: ANN401 - untyped
        """Read the inputs and outputs of `session`, or raise UsageError for unsupported types."""
        self.identity, self._session, self._has_run = identity, session, False
        for each in (*session.get_inputs(), *session.get_outputs()):
            if each.type not in _DTYPES or not each.shape:
                found = f"{each.name!r} is {each.type} {each.shape}"
                raise UsageError(f"policy {identity.name}: {found} (expected a tensor with a batch axis)")
        self._is_batched = all(not isinstance(each.shape[0], int) for each in session.get_inputs())
        self.inputs, self.outputs = _specs(session.get_inputs()), _specs(session.get_outputs())

    def infer(self, inputs: Inputs, /) -> Outputs:
        """Return the outputs of one inference."""
        return self._run([inputs])[0]

    def infer_batch(self, rows: Sequence[Inputs], /) -> Sequence[Outputs]:
        """Return the outputs of each row, by one inference if the model's batch is not fixed."""
        return self._run(rows) if self._is_batched else [self.infer(row) for row in rows]

    def _run(self, rows: Sequence[Inputs]) -> list[dict[str, NDArray[Any]]]:
        feeds = {
            name: np.stack([row[name] for row in rows]).astype(spec.dtype, casting="same_kind")  # not float to integer
            for name, spec in self.inputs.items()
        }
        outputs = dict(zip(self.outputs, map(np.asarray, self._infer(feeds)), strict=True))
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != len(rows):
                raise UsageError(f"output {name!r} of the shape {array.shape} (expected a batch of {len(rows)})")
        return [{name: array[row] for name, array in outputs.items()} for row in range(len(rows))]

    def _infer(self, feeds: Mapping[str, NDArray[Any]]) -> Sequence[Any]:
        """Run the session, with a time limit for the first inference, before anything moves."""
        if self._has_run:
            answer: Sequence[Any] = self._session.run(None, feeds)
            return answer
        import onnxruntime

        options = onnxruntime.RunOptions()
        limit = Timer(_LONGEST_S, setattr, (options, "terminate", True))
        limit.daemon = True
        limit.start()
        try:
            answer = self._session.run(None, feeds, options)
        finally:
            limit.cancel()
        self._has_run = True
        return answer


def check_graph(name: str, data: bytes) -> None:
    """Raise UsageError for a model that is damaged or too large.

    The same holds for one that needs other files or custom operators. Only the structure of the protobuf message is
    read, field by field, so that a hostile file takes no memory.
    """
    pending, n_fields = [("model", memoryview(data), 0)], 0
    domains: dict[str, set[str]] = {"node": set(), "function": set()}
    while pending:
        kind, message, depth = pending.pop()
        if depth > _DEEPEST:
            raise UsageError(f"ONNX model nested too deeply: {name} (expected at most {_DEEPEST} levels)")
        try:
            for number, value in read_fields(message):
                n_fields += 1
                if n_fields > MOST_FIELDS:
                    raise UsageError(f"ONNX model too large: {name} (expected at most {MOST_FIELDS} fields)")
                if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)):
                    remedy = "export it again with torch.onnx.export(..., external_data=False)"
                    raise UsageError(f"ONNX model with data in other files: {name} (expected one file); {remedy}")
                if isinstance(value, memoryview) and value and number in _MESSAGES[kind]:
                    pending.append((_MESSAGES[kind][number], value, depth + 1))
                elif isinstance(value, memoryview) and number == _DOMAIN.get(kind):
                    domains[kind].add(bytes(value).decode("utf-8", "replace"))
        except DamagedMessageError as error:
            raise UsageError(f"ONNX model not readable: {name}: {error} (expected a .onnx file)") from None
    if unknown := domains["node"] - domains["function"] - _DOMAINS:
        raise UsageError(f"ONNX model with custom operators: {name}: {min(unknown)!r} (expected those of onnxruntime)")


def _specs(tensors: Sequence[Any]) -> dict[str, ArraySpec]:
    return {
        each.name: ArraySpec(
            shape=tuple(n if isinstance(n, int) else None for n in each.shape[1:]), dtype=np.dtype(_DTYPES[each.type])
        )
        for each in tensors
    }
