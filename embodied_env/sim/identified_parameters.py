"""Identified parameters of a world, with their file, their values and draws at resets.

`embodied-env identify` writes the file ``NAME.identified.yaml``, and a contract names it in its profile. A file from a
stranger is data: its size is bounded, its values are validated, and nothing in it is executed. `WorldModel` sets each
value that is determined before anything else reads the model. `ResetRandomizer` delays commands by the identified
delay, and with ``draw: intervals`` sets the values of `draw_identified` at each reset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from annotated_types import Interval, Len
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.bounded_files import read_file, write_file
from embodied_env.contract.contract_loader import read_document
from embodied_env.contract.key_types import NotNegative, Text, WholeNumber, like
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.yaml_text import checked_text, dump_yaml
from embodied_env.errors import ContractError, UsageError

SCHEMA = "embodied_env/identified/1"

IDENTIFIED = "identified"
"""The key of the drawn values in the report of a reset, one of each parameter of the file, in its order."""

Kind: TypeAlias = Literal["gain", "damping", "friction_loss", "armature", "mass", "command_delay"]

FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "gain": ("actuator_gainprm", "actuator_biasprm"),
    "damping": ("dof_damping",),
    "friction_loss": ("dof_frictionloss",),
    "armature": ("dof_armature",),
    "mass": ("body_mass", "body_inertia"),
}
"""Kind of parameter -> the fields of the model that it sets. A command delay is none of the model."""

CONSTANT_FIELDS = frozenset({"body_mass", "dof_armature"})  # the fields from which MuJoCo computes constants of a model

MOST_PARAMETERS = 100
MOST_RUNS = 1000

Size: TypeAlias = Annotated[float, Interval(ge=0, le=1e6)]
_Sha256: TypeAlias = Annotated[str, like("[0-9a-f]{64}", "64 hex digits")]
_Names: TypeAlias = Annotated[tuple[Text, ...], Len(0, MOST_PARAMETERS)]


@dataclass(frozen=True, kw_only=True)
class IdentifiedParameter:
    """A parameter that the runs determine."""

    # gain of a servo, N m/rad or N/m (velocity servo: N m s/rad or N s/m); damping, N m s/rad or N s/m;
    # friction_loss, N m or N; armature, kg m² or kg; mass, kg; command_delay, s
    kind: Kind
    of: _Names = ()  # joints of the contract, or bodies of the model, that share the value; empty for command_delay
    value: Size  # most likely value
    low: Size  # lower end of its 95 % interval
    high: Size  # upper end
    model: Size  # value of the model that was fitted

    def __post_init__(self) -> None:
        _check_names(self.kind, self.of)
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} (expected a value in its interval, {self.low} to {self.high})")
        if self.kind in ("gain", "mass") and self.low <= 0.0:
            raise ValueError(f"{self.kind} from {self.low} (expected an interval above 0)")
        if self.kind == "command_delay" and self.high > 1.0:
            raise ValueError(f"command_delay up to {self.high} s (expected at most 1 s)")


@dataclass(frozen=True, kw_only=True)
class UndeterminedParameter:
    """Parameter that the runs do not determine, so that the model keeps its value."""

    kind: Kind
    of: _Names = ()  # as of an identified one
    model: Size  # value of the model
    reason: Text  # why it is not determined

    def __post_init__(self) -> None:
        _check_names(self.kind, self.of)


@dataclass(frozen=True, kw_only=True)
class IdentifiedRun:
    """A run that was used."""

    name: Text  # its directory
    sha256: _Sha256  # of its rows
    backend: Text  # backend, and what its commands moved: a robot, an emulator or a simulator


@dataclass(frozen=True, kw_only=True)
class Residual:
    """RMS of measured less simulated motion of a joint, in rad or m, or per s."""

    before: NotNegative  # with the model's values
    after: NotNegative  # with the identified ones


@dataclass(frozen=True, kw_only=True)
class IdentifiedModel:
    """Fit of a model to recorded runs, as a file ``NAME.identified.yaml`` contains it."""

    contract: Text  # name of the contract of the runs
    fingerprint: _Sha256  # fingerprint of that contract
    created_utc: Text  # time of the fit
    versions: Mapping[Text, Text]  # versions of the packages that made the fit
    runs: Annotated[tuple[IdentifiedRun, ...], Len(1, MOST_RUNS)]
    segments: WholeNumber  # segments of the runs that were fitted
    held_out: WholeNumber  # other segments, of which the residuals are
    parameters: Annotated[tuple[IdentifiedParameter, ...], Len(0, MOST_PARAMETERS)]
    undetermined: Annotated[tuple[UndeterminedParameter, ...], Len(0, MOST_PARAMETERS)] = ()
    # correlation of the parameters, in their order
    correlation: tuple[tuple[Annotated[float, Interval(ge=-1, le=1)], ...], ...] = ()
    # joints whose held-out motion the model does not explain with the identified values: the intervals do not count
    unexplained: _Names = ()
    residuals: Mapping[Text, Residual] = field(default_factory=dict)  # by joint

    def __post_init__(self) -> None:
        seen: set[tuple[str, str]] = set()
        parameters: list[IdentifiedParameter | UndeterminedParameter] = [*self.parameters, *self.undetermined]
        for each in parameters:
            own = {(each.kind, name) for name in each.of or ("",)}
            if len(own) < len(each.of) or seen & own:
                raise ValueError(f"{parameter_name(each.kind, each.of)} given twice (expected once)")
            seen |= own
        shape = tuple(map(len, self.correlation))
        if shape != (len(self.parameters),) * len(self.parameters):
            raise ValueError(f"correlation with rows of {list(shape)} (expected a row and column per parameter)")


def _check_names(kind: Kind, of: Sequence[str]) -> None:
    if (kind == "command_delay") is bool(of):
        expected = "[]" if of else "joints of the contract, or bodies of the model"
        raise ValueError(f"of: {list(of)} (expected {expected}, for {kind})")


def parameter_name(kind: str, of: Sequence[str]) -> str:
    """Return a parameter's name for tables, such as ``gain.elbow`` or ``damping.elbow+wrist``."""
    return ".".join(part for part in (kind, "+".join(of)) if part)


def read_identified(path: str | Path) -> IdentifiedModel:
    """Read a fit's file, or raise UsageError without it and ContractError for wrong values."""
    try:
        return _parse(read_file(path), str(path))
    except OSError as error:
        raise UsageError(f"cannot read the identified parameters: {error} (expected a file of identify)") from None


def write_identified(model: IdentifiedModel, path: str | Path, *, replace: bool = True) -> None:
    """Write the file of a fit like `write_file`, or raise UsageError when it cannot be written."""
    document = {IDENTIFIED: SCHEMA, **asdict(model)}
    text = checked_text(dump_yaml(document), _as_lists(document))
    try:
        write_file(path, text, replace=replace)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror} (expected a path to write to)") from None


def load_identified(contract: Contract, file: str, sha256: str | None, path: str) -> IdentifiedModel:
    """Read the `file` of a profile key and check its `sha256`, or raise ContractError."""
    where = f"{path}.file"
    try:
        content = read_file(contract.resolve_path(file))
    except ContractError as error:
        raise ContractError(where, error.problem, source=contract.source) from None
    except OSError as error:
        problem = f"cannot read {file!r}: {error} (expected a file of identify)"
        raise ContractError(where, problem, source=contract.source) from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        problem = f"{sha256!r} (expected {found}: {file} has changed); load the contract again, or remove the key"
        raise ContractError(f"{path}.sha256", problem, source=contract.source)
    return _parse(content, str(contract.resolve_path(file)))


def _parse(content: bytes, source: str) -> IdentifiedModel:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ContractError("", f"not text: {error} (expected UTF-8)", source=source) from None
    return parse_as(IdentifiedModel, read_document(text, IDENTIFIED, source, schema=SCHEMA), source=source)


def _as_lists(value: Any) -> Any:  # noqa: ANN401 - YAML types
    if isinstance(value, Mapping):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def draw_identified(parameters: Sequence[IdentifiedParameter], seed: int) -> FloatArray:
    """Return a value of each parameter, drawn evenly and independently from its interval."""
    names = [parameter_name(each.kind, each.of) for each in parameters]
    rngs = [np.random.default_rng([seed, *f"{IDENTIFIED}.{name}".encode()]) for name in names]
    values = np.array([rng.uniform(each.low, each.high) for rng, each in zip(rngs, parameters, strict=True)])
    values.flags.writeable = False
    return values


class ModelParameter:
    """Value in an ``MjModel`` shared by joints or bodies, without values derived from it."""

    def __init__(self, mj: Any, kind: Kind, rows: NDArray[np.intp]) -> None:  # noqa: ANN401 - no type stubs
        """Refer to the `rows` of a model, where masses scale the inertia that the bodies have now."""
        self.kind, self.rows = kind, rows
        self._mj = mj
        bodies = rows if kind == "mass" else rows[:0]
        self._mass, self._inertia = mj.body_mass[bodies].copy(), mj.body_inertia[bodies].copy()

    @property
    def value(self) -> float:
        """Value that the model has, or the mean of those that differ."""
        own: FloatArray = getattr(self._mj, FIELDS[self.kind][0])[self.rows]
        return float((own[:, 0] if own.ndim > 1 else own).mean())

    def set(self, value: float) -> None:
        """Set the value of all its joints or bodies."""
        mj, rows = self._mj, self.rows
        if self.kind == "gain":
            columns = np.where(mj.actuator_biasprm[rows, 1] != 0.0, 1, 2)  # of a position and a velocity servo
            mj.actuator_gainprm[rows, 0], mj.actuator_biasprm[rows, columns] = value, -value
        elif self.kind == "mass":
            mj.body_mass[rows] = value
            mj.body_inertia[rows] = self._inertia * (value / self._mass)[:, np.newaxis]
        else:
            getattr(mj, FIELDS[self.kind][0])[rows] = value
