"""The latency profile file round-trips, and errors name the path."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.timing.latency_profile import (
    Estimate,
    LatencyProfile,
    LatencyProfileError,
    as_mapping,
    read_profile,
    write_profile,
)

seconds = st.floats(-10.0, 10.0)


@st.composite
def estimates(draw):
    low_s, value_s, high_s = sorted(draw(st.tuples(seconds, seconds, seconds)))
    samples_s = tuple(draw(st.lists(seconds, max_size=4)))
    return Estimate(
        value_s=value_s, low_s=low_s, high_s=high_s, method="state", n=draw(st.integers(1, 9)), samples_s=samples_s
    )


named = st.dictionaries(st.text(max_size=5), estimates(), max_size=2)
profiles = st.builds(
    LatencyProfile,
    contract=st.just("arm"),
    fingerprint=st.text(max_size=5),
    backend=st.just("real"),
    created_utc=st.just("2026-01-01T00:00:00+00:00"),
    host=st.text(max_size=5),
    seed=st.integers(0, 9),
    actuation_s=st.none() | estimates(),
    lag_s=st.none() | estimates(),
    evidence=named,
    capture_s=named,
    transport_s=named,
    unknown=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
ONE = Estimate(value_s=0.03, low_s=0.02, high_s=0.04, method="state", n=3, samples_s=(0.03,))
WHOLE = LatencyProfile(
    contract="arm",
    fingerprint="f",
    backend="real",
    created_utc="now",
    host="h",
    seed=0,
    actuation_s=ONE,
    capture_s={"a": ONE},
)


@examples(50)
@given(profiles)
def test_profile_round_trips_through_its_file(tmp_path_factory, profile):
    path = tmp_path_factory.mktemp("profile") / "latency_profile.json"
    write_profile(profile, path)
    assert read_profile(path) == profile
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def changed(change):
    data = json.loads(json.dumps(as_mapping(WHOLE)))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data.update(schema="other/1"), "schema 'other/1'"),
        (lambda data: data.pop("seed"), "field seed is missing"),
        (lambda data: data.update(extra=1), "field 'extra' is unknown"),
        (lambda data: data.update(seed=True), "seed: true"),
        (lambda data: data["stages"].pop("lag_s"), "stages: field lag_s is missing"),
        (lambda data: data["stages"]["actuation_s"].update(value_s=1.0), "actuation_s: 1.0 s .expected"),
        (lambda data: data["stages"]["actuation_s"].update(value_s="0.03"), "actuation_s.value_s: .0.03."),
        (lambda data: data["stages"]["capture_s"]["a"].update(low_s=float("nan")), "number NaN"),
        (lambda data: data["stages"]["capture_s"]["a"].update(method=""), "capture_s.a: "),
        (lambda data: data["stages"].update(evidence=[]), "evidence: "),
        (lambda data: data.update(unknown={"a": 1}), "unknown"),
    ],
)
def test_invalid_profile_is_rejected_with_its_path(tmp_path, change, problem):
    path = tmp_path / "latency_profile.json"
    path.write_text(changed(change), encoding="utf-8")
    with pytest.raises(LatencyProfileError, match=problem):
        read_profile(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_file_without_a_profile_is_rejected(tmp_path, text):
    path = tmp_path / "latency_profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LatencyProfileError, match=r"latency_profile\.json"):
        read_profile(path)
