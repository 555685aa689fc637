"""Validate values by their declared types, and build the objects that they represent.

This is the one validator of contracts, policy files, profiles, rows and JSON messages. A type is a dataclass, a
`TypedDict`, or any of their fields' types: text, numbers, true and false, literals, lists, tuples, mappings and unions.
Checks are strict: 1.0 is no integer, true is no number, NaN and unknown keys are errors. Integers have 64 bits except
seeds, and durations (``_s``, ``_ms``) fit 64-bit nanoseconds. A key may be left out where its dataclass has a default.
Bounds are annotations: of `annotated_types`, or `Keywords`; `From` converts a value.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, NotRequired, TypeVar

from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError

T = TypeVar("T")

_INT64 = {"ge": -(2**63), "le": 2**63 - 1}
_LONGEST_S = 2**63 / 1e9  # fits 64-bit nanoseconds
_BRANCH = "\0"  # first character of the name of a branch of a union in the place of an error
_OF_ANOTHER_TYPE = 1000  # errors as which a value of another type counts
_UNKNOWN = "unknown_key"  # type of an error
_MOST_ERRORS = 20  # of a contract, reported at once
_LONGEST_SHOWN = 200  # characters of a value or an expectation

_CONSTRAINTS = {  # keyword of JSON Schema -> constraint of pydantic
    "minimum": "ge",
    "maximum": "le",
    "minLength": "min_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
}
_TERMS = {  # parts of pydantic's messages, in terms of YAML and JSON
    "a valid dictionary": "a mapping",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid string": "text",
    "a valid number": "a number",
    "a valid integer": "an integer",
    "a valid boolean": "true or false",
}
_LIMITS = {  # the bounds of pydantic's errors, in words
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least",
    "max_length": "at most",
}


class Keywords:
    """Keywords of JSON Schema, and additional ones of the schema of ``info``."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - JSON types
        """Store the keywords."""
        self.values = values


@dataclasses.dataclass(frozen=True)
class From:
    """The JSON type of a value and its optional conversion, which may raise ValueError."""

    type: Any
    convert: Callable[[Any], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Shared:
    """Makes the type a definition of the schema of ``info`` with this name."""

    name: str


OPEN = Keywords(additionalProperties=True)  # allows unknown keys


class Misfit(NamedTuple):
    """A value that does not follow its type."""

    path: str  # "" for the whole value
    value: Any  # None if it is missing
    problem: str  # the value and what is expected, or what is wrong with the key
    expected: str = ""  # "" for a wrong key, or where only a condition states it
    is_unknown: bool = False


def parse_as(cls: type[T], data: Mapping[str, Any], *, path: str = "", source: str = "") -> T:
    """Build the dataclass `cls`, nested ones included, from the YAML types in `data`.

    Raises ContractError for the invalid values, with their paths inside `data` appended to `path`.
    """
    try:
        validator = _validator(typing.cast("Hashable", cls))
    except TypeError as error:  # of a task's parameters
        expected = "expected parameters of text, numbers, true, false, lists and mappings"
        raise ContractError(path, f"{error} ({expected})", source=source) from None
    built, misfits = _validate(validator, _as_tuples(data))
    _raise_contract_error(misfits, path, source)
    return typing.cast("T", built)


def check_types(cls: type, instance: object, *, source: str = "") -> None:
    """Check the types and bounds of a dataclass built in Python, or raise ContractError."""
    _, misfits = _validate(_validator(typing.cast("Hashable", cls), is_built=True), instance)
    _raise_contract_error(misfits, "", source)


def check_value(value: object, where: str, kind: Any) -> Any:  # noqa: ANN401 - a type, and its value
    """Return the `kind` that `value`, in JSON types, represents, or raise ValueError.

    The error is one line with `where`, the path of the value, the value and what is expected.
    """
    valid, misfits = _validate(_validator(kind), value)
    if misfits:
        raise ValueError(": ".join(part for part in (where, misfits[0].path, misfits[0].problem) if part))
    return valid


def find_misfits(value: object, kind: Any, *, required: frozenset[str] = frozenset()) -> list[Misfit]:  # noqa: ANN401
    """Return the misfits of `value` in JSON types, including missing `required` keys."""
    return _validate(_validator(kind, required), value)[1]


@functools.cache
def hints_of(cls: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a class
    """Return the annotated types of the fields of a class, which take long to evaluate."""
    return typing.get_type_hints(cls, include_extras=True)


def _validate(validator: Any, value: object) -> tuple[Any, list[Misfit]]:  # noqa: ANN401 - pydantic's
    from pydantic_core import ValidationError  # noqa: PLC0415 - heavy

    try:
        return validator.validate_python(value), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    cause = errors[0].get("ctx", {}).get("error")
    if isinstance(cause, ContractError):  # of a dataclass
        raise cause
    return None, list(_misfits(errors))


def _raise_contract_error(misfits: Sequence[Misfit], path: str, source: str) -> None:
    """Raise ContractError if there are misfits, with a misspelt key reported once."""
    misfits = [each for each in misfits if each.is_unknown] or misfits
    errors = [
        ContractError(
            ".".join(filter(None, (path, each.path))).replace("task.parameters.", "task."), each.problem, source=source
        )
        for each in misfits[:_MOST_ERRORS]
    ]
    if errors:
        raise ContractError(errors[0].path, errors[0].problem, source=source, others=errors[1:])


def _as_tuples(value: Any) -> Any:  # noqa: ANN401 - YAML types
    if isinstance(value, Mapping):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value


# ------------------------------------------------------------------------------------------------------------- schemas


@functools.cache
def _validator(kind: Any, required: frozenset[str] = frozenset(), *, is_built: bool = False) -> Any:  # noqa: ANN401
    """Return the validator of mappings, or of dataclasses built in Python."""
    import pydantic_core  # noqa: PLC0415 - heavy

    return pydantic_core.SchemaValidator(_Schemas(required, is_built=is_built).of(kind))


class _Schemas:
    def __init__(self, required: frozenset[str], *, is_built: bool) -> None:
        from pydantic_core import core_schema  # noqa: PLC0415 - heavy

        self._make, self._required, self._is_built = core_schema, required, is_built

    def of(self, hint: Any, key: str = "") -> Any:  # noqa: ANN401 - a type, and pydantic's
        """Return the schema of the type of `key`, or of an item in it."""
        plain, metadata = _unwrapped(hint)
        conversion = next((each for each in metadata if isinstance(each, From)), None)
        if conversion is not None:
            plain, inner = _unwrapped(conversion.type)
            metadata = [*inner, *metadata]
        conditions = [each for each in metadata if hasattr(each, "change")]
        schema = self._plain(plain, [each for each in metadata if each not in (conversion, *conditions)], key)
        for condition in conditions:
            schema = condition.change(schema)
        if conversion is None or conversion.convert is None:
            return schema
        return self._make.no_info_after_validator_function(conversion.convert, schema)

    def _plain(self, plain: Any, metadata: list[Any], key: str) -> Any:  # noqa: ANN401, C901, PLR0911 - a line per kind
        make, (words, constraints) = self._make, _constraints(metadata)
        origin, arguments = typing.get_origin(plain), typing.get_args(plain)
        if typing.is_typeddict(plain) or dataclasses.is_dataclass(plain):
            return self._object(plain, is_open=words.get("additionalProperties", False))
        if origin in (typing.Union, types.UnionType):
            options = [
                Annotated[(each, *metadata)] if metadata else each for each in arguments if each is not type(None)
            ]
            inner = self._union(options, key)
            return inner if len(options) == len(arguments) else make.nullable_schema(inner)
        if "null" in words.get("type", ()):
            others = Keywords(**{word: value for word, value in words.items() if word != "type"})
            return make.nullable_schema(self._plain(plain, [others], key))
        if (allowed := arguments if origin is typing.Literal else words.get("enum")) is not None:
            literal = make.literal_schema(list(allowed))
            number = {int: make.int_schema, bool: make.bool_schema}.get(type(allowed[0]))  # 1 == True == 1.0
            return literal if number is None else make.chain_schema([number(strict=True), literal])
        if origin is tuple:
            items, any_number = [self.of(each, key) for each in arguments if each is not ...], arguments[-1] is ...
            index = 0 if any_number else None
            return make.tuple_schema(items, variadic_item_index=index, strict=self._is_built, **constraints)
        if origin in (list, Sequence):
            return make.list_schema(self.of(arguments[0], key), strict=True, **constraints)
        if origin in (dict, Mapping):
            return make.dict_schema(self.of(arguments[0]), self.of(arguments[1], key), strict=False, **constraints)
        if isinstance(plain, type) and issubclass(plain, IntEnum):
            values = self.of(typing.Literal[tuple(each.value for each in plain)])
            return make.no_info_after_validator_function(plain, values)
        if plain is int:
            return make.int_schema(strict=True, **({} if key.startswith("seed") else _INT64) | constraints)
        if plain is float:
            return make.float_schema(strict=True, allow_inf_nan=False, **_bounds_of_durations(key) | constraints)
        if plain in (str, bool, bytes):
            schema = {str: make.str_schema, bool: make.bool_schema, bytes: make.bytes_schema}[plain]
            return schema(strict=True, **constraints)
        if plain in (Any, object, type(None)):
            return make.none_schema() if plain is type(None) else make.any_schema()
        raise TypeError(f"type {getattr(plain, '__qualname__', plain)} cannot be validated")

    def _object(self, plain: Any, *, is_open: bool) -> Any:  # noqa: ANN401 - a type, and pydantic's
        make, hints = self._make, hints_of(plain)
        if typing.is_typeddict(plain):
            names = shown = list(plain.__annotations__)
            needed = plain.__required_keys__ | self._required
        else:
            own = [each for each in dataclasses.fields(plain) if each.init]
            names, shown = [each.name for each in own], [each.name for each in own if each.compare]
            needed = {each.name for each in own if each.default is each.default_factory is dataclasses.MISSING}
        fields = {name: make.typed_dict_field(self.of(hints[name], name), required=name in needed) for name in names}
        refusal = None
        if not is_open:
            never, known = make.is_subclass_schema(_Unknown), {"known": ", ".join(shown)}
            refusal = make.custom_error_schema(never, _UNKNOWN, custom_error_message="", custom_error_context=known)
        schema = make.typed_dict_schema(fields, extra_behavior="allow", extras_schema=refusal)
        if typing.is_typeddict(plain):
            return schema

        def build(value: object, validate: Callable[[Any], Any]) -> object:
            if isinstance(value, plain):
                validate({name: getattr(value, name) for name in names})
                return value
            if self._is_built:
                raise ValueError(f"{value!r} (expected an instance of {plain.__name__})")
            return plain(**validate(value))

        return make.no_info_wrap_validator_function(build, schema)

    def _union(self, options: list[Any], key: str) -> Any:  # noqa: ANN401 - pydantic's
        if len(options) == 1:
            return self.of(options[0], key)
        choices: list[Any] = [(self.of(option, key), f"{_BRANCH}{number}") for number, option in enumerate(options)]
        return self._make.union_schema(choices, mode="left_to_right")


class _Unknown:
    """A class without subclasses, so that no value of an unknown key is valid."""


def _constraints(metadata: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schema keywords of annotations, and their bounds for pydantic."""
    words = {word: value for each in metadata if isinstance(each, Keywords) for word, value in each.values.items()}
    constraints = {name: words[word] for word, name in _CONSTRAINTS.items() if word in words}
    limits = [(name, getattr(each, name, None)) for each in metadata for name in _LIMITS]
    return words, constraints | {name: limit for name, limit in limits if limit is not None}


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:  # noqa: ANN401 - types
    metadata: list[Any] = []
    while typing.get_origin(hint) in (Annotated, NotRequired):
        if typing.get_origin(hint) is Annotated:
            metadata = [*hint.__metadata__, *metadata]
        hint = hint.__origin__ if typing.get_origin(hint) is Annotated else typing.get_args(hint)[0]
    return hint, metadata


def _bounds_of_durations(key: str) -> dict[str, float]:
    if not key.endswith(("_s", "_ms")):
        return {}
    most = _LONGEST_S * (1e3 if key.endswith("_ms") else 1.0)
    return {"ge": -most, "le": most}


# -------------------------------------------------------------------------------------------------------------- errors


def _misfits(errors: list[Any]) -> Iterator[Misfit]:
    """Yield pydantic's errors by place, in a union those of the branch that fits best."""
    for place, branches in _branches(errors).items():
        best = min(branches, key=branches.__getitem__)
        if branches[best] < _OF_ANOTHER_TYPE:
            errors = [each for each in errors if each["loc"][: len(place)] != place or each["loc"][len(place)] == best]
    by_place: dict[tuple[Any, ...], list[Any]] = {}
    for each in errors:
        is_key = each["loc"][-1:] == ("[key]",) and each["type"] != _UNKNOWN
        keys = each["loc"][: len(each["loc"]) - is_key]
        place = tuple(part for part in keys if not str(part).startswith(_BRANCH))
        by_place.setdefault(place, []).append(each)
    for place, found in by_place.items():
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
        of_values = [each for each in found if not each["type"].endswith("_type")] or found  # a branch of that type
        first = of_values[0]
        if first["type"] == "missing":
            yield Misfit(path, None, "missing value" if isinstance(first["loc"][-1], int) else "missing key")
        elif first["type"] == _UNKNOWN:
            key = one_of(first["loc"][-1], first["ctx"]["known"].split(", "))
            yield Misfit(path, first["input"], f"unknown key {key}", is_unknown=True)
        elif first["type"] == "value_error":  # of a condition or a conversion
            yield Misfit(path, first["input"], str(first["ctx"]["error"]))
        else:
            value = _shortened(json.dumps(first["input"], default=str))
            expected = _shortened(" or ".join(dict.fromkeys(map(_expected, of_values))))
            yield Misfit(path, first["input"], f"{value} (expected {expected})", expected)


def _branches(errors: list[Any]) -> dict[tuple[Any, ...], Counter[str]]:
    found: dict[tuple[Any, ...], Counter[str]] = {}
    for each in errors:
        for index, part in enumerate(each["loc"]):
            if str(part).startswith(_BRANCH):
                is_another_type = index + 1 == len(each["loc"])
                found.setdefault(each["loc"][:index], Counter())[part] += _OF_ANOTHER_TYPE if is_another_type else 1
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _expected(error: Mapping[str, Any]) -> str:
    for limit, value in error.get("ctx", {}).items():
        if limit in _LIMITS:
            noun = " characters" if "string" in error["type"] else " values"
            noun = noun if limit.endswith("length") else ""
            return f"{_LIMITS[limit]} {value:g}{noun if value != 1 else noun.rstrip('s')}"
        if limit == "pattern":
            return f"text that matches {value}"
    wanted: str = error["msg"].removeprefix("Input should be ")
    for term, ours in _TERMS.items():
        wanted = wanted.replace(term, ours)
    return wanted
