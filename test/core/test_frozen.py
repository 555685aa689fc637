"""A quick dataclass is a frozen dataclass in all but the time that it takes to make one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import pytest

from embodied_env.core.frozen import changed, quick


@quick
@dataclass(frozen=True, kw_only=True)
class Quick:
    name: str
    number: int = 3
    seen: list[int] = field(default_factory=list)
    hidden: int = field(default=0, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Plain:
    name: str
    number: int = 3
    seen: list[int] = field(default_factory=list)
    hidden: int = field(default=0, repr=False, compare=False)


ARGUMENTS = [{"name": "a"}, {"name": "a", "number": 4}, {"name": "b", "seen": [1], "hidden": 2, "number": 0}]


@pytest.mark.parametrize("given", ARGUMENTS)
def test_it_has_the_fields_that_a_plain_one_has(given):
    assert vars(Quick(**given)) == vars(Plain(**given))
    assert list(vars(Quick(**given))) == list(vars(Plain(**given)))
    assert repr(Quick(**given)) == repr(Plain(**given)).replace("Plain", "Quick")


def test_a_default_that_is_made_is_made_for_each():
    assert Quick(name="a").seen is not Quick(name="a").seen


@pytest.mark.parametrize("given", [{}, {"number": 1}, {"name": "a", "nam": 1}])
def test_a_missing_or_unknown_argument_is_refused(given):
    with pytest.raises(TypeError, match="argument"):
        Quick(**given)


def test_arguments_by_place_are_refused():
    with pytest.raises(TypeError):
        Quick("a")


def test_nobody_writes_into_it():
    made = Quick(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.other = 1


def test_it_is_equal_by_what_is_compared():
    assert Quick(name="a", hidden=1) == Quick(name="a", hidden=2)
    assert Quick(name="a") != Quick(name="b")
    assert Quick(name="a") != Plain(name="a")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])  # noqa: S301 - its own
def test_a_copy_is_equal_and_frozen(again):
    made = again(Quick(name="a", number=5))
    assert vars(made) == vars(Quick(name="a", number=5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"


@pytest.mark.parametrize("replaced", [dataclasses.replace, changed])
def test_another_value_of_a_field_makes_another_and_leaves_the_first(replaced):
    first = Quick(name="a", seen=[1])
    second = replaced(first, number=9)
    assert vars(second) == {"name": "a", "number": 9, "seen": [1], "hidden": 0}
    assert type(second) is Quick
    assert first.number == 3


@pytest.mark.parametrize("replaced", [dataclasses.replace, changed])
def test_another_value_of_no_field_is_refused(replaced):
    with pytest.raises(TypeError, match="nmber"):
        replaced(Quick(name="a"), nmber=9)


def test_its_signature_is_that_of_a_plain_one():
    assert str(inspect.signature(Quick)) == str(inspect.signature(Plain))


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted:
    name: str


@dataclass(frozen=True)
class ByPlace:
    name: str


@dataclass(frozen=True, kw_only=True)
class Derived:
    name: str
    size: int = field(init=False, default=0)


@dataclass(frozen=True, kw_only=True)
class Checked:
    name: str

    def __post_init__(self):
        pass


@pytest.mark.parametrize("kind", [Slotted, ByPlace, Derived, Checked, dict])
def test_what_cannot_be_quick_is_refused(kind):
    with pytest.raises(TypeError):
        quick(kind)
