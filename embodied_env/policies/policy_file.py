"""Policy files, which give a model's inputs and outputs in terms of a contract."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from annotated_types import Interval, MinLen

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import read_file, read_text_file, write_file
from embodied_env.contract.bounded_json import parse_json
from embodied_env.contract.contract_loader import read_document
from embodied_env.contract.fingerprint import differences, meaning, sha256_of, to_plain
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Count, Positive, Quantity, Range, Such, exactly_one
from embodied_env.contract.typed_values import check_types, parse_as
from embodied_env.contract.value_checks import allow, one_of, require
from embodied_env.contract.yaml_text import checked_text, dump_yaml
from embodied_env.errors import ContractError, UsageError

SCHEMA = "embodied_env/policy/1"
SUFFIX = ".policy.yaml"
MOST_DATA_BYTES = 8 * 2**20  # maximum size of the data files that a policy file names, together
_OWN = ("source", "text", "files")  # fields that are no keys
_MOST_SHOWN = 5  # differences of a contract
_MOST_VALUES = 2**20  # values of an output
_MOST_READINGS = 10_000  # readings of all inputs, with history

DataFile: TypeAlias = Annotated[
    str,
    Such(
        expected="the name of a file in the folder of the policy file",
        holds=lambda name: name not in ("", ".", "..") and not {*name} & {"/", "\\", "\0"},
    ),
]
Names: TypeAlias = Annotated[tuple[str, ...], Such(expected="different names", holds=lambda x: 0 < len(x) == len({*x}))]
Components: TypeAlias = Annotated[int, Interval(ge=1, le=10_000)]
Side: TypeAlias = Annotated[int, Interval(ge=1, le=4096)]
Sign: TypeAlias = Annotated[Quantity, Such(expected="1 or -1", holds=lambda sign: abs(sign) == 1)]
Factor: TypeAlias = Annotated[Quantity, Such(expected="not 0, at least 1e-9", holds=lambda x: abs(x) >= 1e-9)]
Steps: TypeAlias = Annotated[
    tuple[Annotated[int, Interval(ge=-1000, le=0)], ...],
    Such(expected="different steps", holds=lambda steps: 0 < len(steps) == len({*steps})),
]

Numbers: TypeAlias = Quantity | tuple[Quantity, ...]  # one number for all components, or one each
TRANSFORMS = ("reciprocal_from", "direction_from")
"""Keys of an input part that transform the value of the field; at most one is given."""

STATISTICS: Mapping[str, tuple[str, str]] = {  # the statistics of each method, as LeRobot and openpi name them
    "mean_std": ("mean", "std"),
    "min_max": ("min", "max"),
    "quantiles": ("q01", "q99"),
    "quantiles10": ("q10", "q90"),
}


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """The only contract that a policy is used with, that of its training."""

    name: str  # name of the contract
    fingerprint: str  # its fingerprint (`embodied-env contract fingerprint`)
    file: DataFile | None = None  # the contract in JSON, in the folder of the policy file, to name the difference


@dataclass(frozen=True, kw_only=True)
class NormalizeSpec(FrozenFields):
    """Statistics of the training data that normalise inputs and, inverted, outputs."""

    # `mean_std`: (x - mean) / std; the others map `min` and `max`, the 1st and 99th, or the 10th and 90th percentile
    # onto `range`
    method: Literal["mean_std", "min_max", "quantiles", "quantiles10"]
    mean: Numbers | None = None  # `mean_std`: one number per component, after unit, sign, offset and scale
    std: Numbers | None = None  # `mean_std`, > 0, or >= 0 with `epsilon`
    min: Numbers | None = None  # `min_max`
    max: Numbers | None = None  # `min_max`, above `min`
    q01: Numbers | None = None  # `quantiles`
    q99: Numbers | None = None  # `quantiles`, above `q01`
    q10: Numbers | None = None  # `quantiles10`
    q90: Numbers | None = None  # `quantiles10`, above `q10`
    # instead of numbers: a safetensors or JSON file in the folder of the policy file, such as LeRobot's `stats.json`
    file: DataFile | None = None
    key: str | None = None  # the feature in `file`: `observation.state`
    range: Range = (-1.0, 1.0)  # not for `mean_std`
    epsilon: Annotated[float, Interval(ge=0, le=1e12)] = 0.0  # added to the divisor: 1e-8 in LeRobot
    # the normalised value is clipped to this magnitude
    clip: Annotated[float, Interval(gt=0, le=1e12)] | None = None


@dataclass(frozen=True, kw_only=True)
class InputPart(FrozenFields):
    """Components (value in `unit` - `offset`) * `sign` * `scale` of an input.

    The components are consecutive. With `last_output` they are those of a raw output instead. With `reciprocal_from` or
    `direction_from`, the value is the reciprocal or direction of that of the field.
    """

    field: str | None = None  # key of the observation: `joints_position`; null: with `last_output`
    joints: Names | None = None  # joints of the field by name, in the order of the policy
    components: tuple[int, ...] | None = None  # components of a field without joints, from 0; null: all
    # required with joints: `rad`, `deg`, `m`, `mm` and so on, or the range that the `limits` of the joint stand for:
    # `-100..100`, `0..100`, `-1..1`, `0..1`; one per joint for mixed joints. null: that of the contract
    unit: str | tuple[str, ...] | None = None
    sign: Sign | tuple[Sign, ...] = 1  # 1 or -1
    offset: Numbers = 0.0  # in `unit`, such as the default pose of the training
    scale: Factor | tuple[Factor, ...] = 1.0  # not 0
    quaternion: Literal["xyzw", "wxyz"] | None = None  # order of an orientation, for which it is required
    # 1 / value, for distances of which the small ones matter; the least value; without `unit`
    reciprocal_from: Positive | None = None
    # the vector divided by its length, for a goal; the least length; without `unit`
    direction_from: Positive | None = None
    last_output: str | None = None  # output of the model at the last inference, as it was; 0 at first


Part: TypeAlias = Annotated[InputPart, exactly_one("field", "last_output")]


@dataclass(frozen=True, kw_only=True)
class HistorySpec(FrozenFields):
    """Several readings in one input, at steps of the policy's control period."""

    steps: Steps  # control step of each row: `[-2, -1, 0]` is oldest first, `[0, -1, -2]` newest first
    pad: Literal["repeat", "zeros"] = "repeat"  # content before the first reading of an episode
    # `stacked`: shape (n, size); `by_time`: one vector, row after row; `by_part`: all rows of each part in turn
    layout: Literal["stacked", "by_time", "by_part"] = "stacked"


@dataclass(frozen=True, kw_only=True)
class ImageSpec(FrozenFields):
    """An image of the observation."""

    field: str  # key of the observation: `front_image`
    size: tuple[Side, Side]  # height and width that the policy was trained with
    # how another size is resized, as in a contract: `letterbox` pads, `crop` cuts, `stretch` changes the aspect ratio;
    # null: another size is refused
    method: Literal["letterbox", "stretch", "crop"] | None = None
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"  # filter of Pillow
    channels: Literal["rgb", "bgr", "mono", "depth"] = "rgb"  # converted from the encoding of the contract
    expand: bool = False  # repeat a mono image in the three channels of `rgb`
    layout: Literal["hwc", "chw"] = "hwc"  # order of the axes
    range: Range | None = None  # what 0 and 255 become, as float32; null: uint8 as it is. Not for depth


@dataclass(frozen=True, kw_only=True)
class PolicyInputSpec(FrozenFields):
    """One input of the model from exactly one of `parts`, `image` and `text`."""

    parts: Annotated[tuple[Part, ...], MinLen(1)] | None = None  # a vector of these parts, in this order
    image: ImageSpec | None = None  # an image
    text: Literal["instruction"] | None = None  # the task's instruction
    normalize: NormalizeSpec | None = None  # normalisation of the whole vector, or of each channel
    history: HistorySpec | None = None  # several readings; null: the newest


PolicyInput: TypeAlias = Annotated[PolicyInputSpec, exactly_one("parts", "image", "text")]


@dataclass(frozen=True, kw_only=True)
class ThresholdSpec:
    """Two positions of a gripper that the policy opens and closes."""

    at: Quantity  # a larger value is `above`, any other one `below`; after `normalize`
    below: Quantity  # in `unit`
    above: Quantity  # in `unit`


@dataclass(frozen=True, kw_only=True)
class OutputPart(FrozenFields):
    """Consecutive components value * `scale` * `sign` + `offset`, in `unit`, one per joint."""

    actuator: str | None = None  # actuator of the contract; null: with `ignore`
    joints: Names | None = None  # joints of the actuator by name, in the order of the policy; its twist axes
    # as for inputs, required; `action`: that of the contract's action space
    unit: str | tuple[str, ...] | None = None
    # `absolute`: a position or velocity; `delta`: a displacement of the command per control period of the policy;
    # `relative`: to the measured position at inference, the same for all actions of a chunk
    mode: Literal["absolute", "delta", "relative"] = "absolute"
    sign: Sign | tuple[Sign, ...] = 1  # 1 or -1
    offset: Numbers = 0.0  # in `unit`, such as the default pose of the training
    scale: Factor | tuple[Factor, ...] = 1.0  # not 0
    threshold: ThresholdSpec | None = None  # two positions instead of any
    ignore: Components | None = None  # components without a meaning here, such as padding


@dataclass(frozen=True, kw_only=True)
class OutputSpec(FrozenFields):
    """One output of the model, an action (size,), or with `chunk` actions (n, size)."""

    parts: Annotated[tuple[OutputPart, ...], MinLen(1)]  # parts of the vector, in this order
    normalize: NormalizeSpec | None = None  # normalisation of the whole vector; its inverse is applied first

    @property
    def size(self) -> int:
        """Number of components."""
        return sum(part.ignore or len(part.joints or ()) for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class ChunkSpec:
    """Several actions from one inference."""

    length: Components  # number of actions
    execute: Count | None = None  # number of them to execute before the next chunk; null: all


@dataclass(frozen=True, kw_only=True)
class PolicyFile(FrozenFields):
    """The keys of a policy file, validated at construction as far as no contract is needed."""

    name: str  # name of the policy
    control_period_s: Positive  # control period of the training; a contract with another one needs `resample`
    inputs: Annotated[Mapping[str, PolicyInput], MinLen(1)]  # inputs by the model's names
    outputs: Annotated[Mapping[str, OutputSpec], MinLen(1)]  # outputs by the model's names
    contract: TrainedOn | None = None  # contract that the policy was trained under; null: any that fits
    # actions at another control period: `hold` repeats or skips, `linear` interpolates between those of a chunk; deltas
    # are divided. null: it is refused
    resample: Literal["hold", "linear"] | None = None
    joint_names: Mapping[str, str] = field(default_factory=dict)  # names in the contract of joints named otherwise here
    # positions that the ends of the units `-100..100`, `0..100`, `-1..1` and `0..1` stood for in the training,
    # by joint, in the unit of the contract
    limits: Mapping[str, Range] = field(default_factory=dict)
    chunk: ChunkSpec | None = None  # null: one action per inference
    source: str = field(default="", compare=False)  # the file it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Contents of the data files that it names, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_types(PolicyFile, self)
        _validate(self)

    def specs(self) -> Iterator[tuple[str, PolicyInputSpec | OutputSpec]]:
        """Yield path and keys of each input and output."""
        for name, spec in self.inputs.items():
            yield f"inputs.{name}", spec
        for name, output in self.outputs.items():
            yield f"outputs.{name}", output

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the file and the data files that it names."""
        contents = {SUFFIX: self.text.encode(), **self.files}
        return sha256_of({name: sha256(content).hexdigest() for name, content in contents.items()})

    def difference(self, contract: Contract) -> str:
        """Return the difference of `contract` from the one used in training, or ""."""
        trained = self.contract
        if trained is None or trained.fingerprint == contract.fingerprint:
            return ""
        if trained.file is None:
            return f"fingerprint {contract.fingerprint[:16]} (expected {trained.fingerprint[:16]}, of {trained.name})"
        try:
            recorded = parse_json(self.files[trained.file], max_bytes=MOST_DATA_BYTES)
        except (KeyError, ValueError) as error:
            raise UsageError(f"{self.source}: cannot read {trained.file!r}: {error} (expected JSON)") from None
        if sha256_of(recorded) != trained.fingerprint:
            problem = f"{self.source}: the content of {trained.file!r} has another fingerprint (expected "
            raise UsageError(f"{problem}{trained.fingerprint[:16]}); export the policy again")
        found = differences(recorded, meaning(contract))
        rows = [f"{path}: {ours!r:.80} (trained under {theirs!r:.80})" for path, theirs, ours in found[:_MOST_SHOWN]]
        return "; ".join(rows) + (f"; and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else "")


def read_policy_file(path: str | Path) -> PolicyFile:
    """Return the policy file at `path` with its data files, or raise UsageError."""
    try:
        text = read_text_file(path)
        document = read_document(text, "policy", "", schema=SCHEMA)
        for own in _OWN:
            require(own not in document, own, "unknown key")
        parsed = parse_as(PolicyFile, {**document, "source": str(path), "text": text})
        files: dict[str, bytes] = {}
        for name in sorted({name for _, name in _data_files(parsed)}):
            left = MOST_DATA_BYTES - sum(map(len, files.values()))
            files[name] = read_file(Path(path).parent / name, most_bytes=left)
        return replace(parsed, files=files)
    except (OSError, UnicodeDecodeError) as error:
        problem = "not text" if isinstance(error, UnicodeDecodeError) else error
        raise UsageError(f"cannot read policy file {str(path)!r}: {problem} (expected a YAML file)") from None
    except ContractError as error:
        raise UsageError(f"policy file {path}: {error}") from None


def dump_policy_file(file: PolicyFile) -> str:
    """Return the YAML text that `read_policy_file` reads as `file`, without default keys."""
    keys = {key: value for key, value in to_plain(file, with_defaults=False).items() if key not in _OWN}
    document = {"policy": SCHEMA, **keys}
    return checked_text(dump_yaml(document), document)


def write_policy_file(path: str | Path, file: PolicyFile) -> PolicyFile:
    """Write `file` to `path` and its data files next to it, and return it as read."""
    for name, content in file.files.items():
        write_file(Path(path).parent / name, content)
    write_file(path, dump_policy_file(file))
    return read_policy_file(path)


def trained_on(contract: Contract, file: str = "contract.json") -> tuple[TrainedOn, dict[str, bytes]]:
    """Return the keys `contract` and `files` of a policy that was trained under `contract`."""
    content = json.dumps(meaning(contract), indent=1, allow_nan=False).encode()
    return TrainedOn(name=contract.name, fingerprint=contract.fingerprint, file=file), {file: content}


# --------------------------------------------------------------------------------------------------------- validation


def _data_files(file: PolicyFile) -> Iterator[tuple[str, str]]:
    if file.contract is not None and file.contract.file is not None:
        yield "contract.file", file.contract.file
    for path, spec in file.specs():
        if spec.normalize is not None and spec.normalize.file is not None:
            yield f"{path}.normalize.file", spec.normalize.file


def _validate(file: PolicyFile) -> None:
    for path, spec in file.specs():
        if isinstance(spec, PolicyInputSpec):
            _validate_input(path, spec)
        parts: Sequence[InputPart | OutputPart] = spec.parts or ()
        for index, part in enumerate(parts):
            _validate_part(f"{path}.parts[{index}]", part, file.outputs)
        if spec.normalize is not None:
            _validate_normalize(f"{path}.normalize", spec.normalize)
    readings = [
        len(spec.parts or "1") * len(spec.history.steps if spec.history else "1") for spec in file.inputs.values()
    ]
    allow(sum(readings) <= _MOST_READINGS, "inputs", f"{sum(readings)} readings", f"at most {_MOST_READINGS}")
    if (chunk := file.chunk) is not None:
        execute = chunk.execute or chunk.length
        allow(execute <= chunk.length, "chunk.execute", execute, f"1 to {chunk.length}, the length")
    for name, output in file.outputs.items():
        count = output.size * (1 if chunk is None else chunk.length)
        allow(count <= _MOST_VALUES, f"outputs.{name}", f"{count} values", f"at most {_MOST_VALUES}")


def _validate_input(path: str, spec: PolicyInputSpec) -> None:
    if (image := spec.image) is not None:
        is_allowed = image.channels != "depth" or image.range is None
        require(is_allowed, f"{path}.image.range", "range of a depth image (expected null: it stays in metres)")
    if spec.text is not None:
        require(spec.normalize is None and spec.history is None, path, "normalize or history of a text (expected none)")
    if (history := spec.history) is not None:
        is_possible = history.layout == "stacked" or spec.parts is not None
        require(is_possible, f"{path}.history.layout", f"{history.layout} of an image (expected stacked)")


def _validate_part(path: str, part: InputPart | OutputPart, outputs: Iterable[str]) -> None:
    if isinstance(part, InputPart):
        if part.last_output is not None:
            require(part.last_output in outputs, f"{path}.last_output", one_of(part.last_output, outputs))
            is_alone = part == InputPart(last_output=part.last_output)
            require(is_alone, path, "last_output with another key (expected none: it is the output as it was)")
        transforms = [key for key in ("unit", *TRANSFORMS) if getattr(part, key) is not None]
        problem = f"{' and '.join(transforms)} (expected one of unit, {', '.join(TRANSFORMS)})"
        require(len(transforms) <= 1, f"{path}.{transforms[-1] if transforms else ''}", problem)
    elif part.ignore is not None:
        require(part == OutputPart(ignore=part.ignore), path, "ignore with another key (expected none)")
    else:
        for key in ("actuator", "joints", "unit"):
            expected = " (expected rad, deg and so on, or action: as in the action space)" if key == "unit" else ""
            require(getattr(part, key) is not None, f"{path}.{key}", f"missing key{expected}")
        is_plain = (part.sign, part.offset, part.scale, part.mode) == (1, 0, 1, "absolute")
        problem = "threshold with mode, sign, offset or scale (expected none)"
        require(part.threshold is None or is_plain, path, problem)


def _validate_normalize(path: str, spec: NormalizeSpec) -> None:
    wanted = STATISTICS[spec.method]
    given = {name for pair in STATISTICS.values() for name in pair if getattr(spec, name) is not None}
    if spec.file is None:
        require(spec.key is None, f"{path}.key", "key without file")
        found = ", ".join(sorted(given)) or "no numbers"
        allow(given == {*wanted}, path, found, f"{' and '.join(wanted)}, or file and key")
    else:
        require(spec.key is not None and not given, path, "expected file with key and without numbers")
    allow(spec.method != "mean_std" or spec.range == (-1.0, 1.0), f"{path}.range", spec.range, "no range with mean_std")
