from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_env.errors import UsageError
from embodied_env.policies.policy_loader import parse_address, parse_server


@pytest.mark.parametrize(
    ("address", "name", "location", "part", "options"),
    [
        ("hold", "hold", None, None, {}),
        ("scripted?backend=mujoco", "scripted", None, None, {"backend": "mujoco"}),
        ("onnx:reach.onnx?threads=2", "onnx", "reach.onnx", None, {"threads": 2}),
        ("onnx:models/#3/what?.onnx", "onnx", "models/#3/what?.onnx", None, {}),
        ("onnx:a b (1)/x.onnx?threads=2", "onnx", "a b (1)/x.onnx", None, {"threads": 2}),
        ("lerobot:user/act@main", "lerobot", "user/act@main", None, {}),
        ("openpi://h:8000?timeout_s=0.2&nested=True", "openpi", "//h:8000", None, {"timeout_s": 0.2, "nested": True}),
        ("openpi://h/path?rtc=", "openpi", "//h/path", None, {"rtc": ""}),
        ("gr00t://[::1]:5555?release=n1.5", "gr00t", "//[::1]:5555", None, {"release": "n1.5"}),
        ("run:runs/x", "run", "runs/x", None, {}),
        ("run:runs/x#2?actions=applied", "run", "runs/x", "2", {"actions": "applied"}),
        ("run:runs/a#b#12", "run", "runs/a#b", "12", {}),
        ("run:x?actions=a%26b%3D1", "run", "x", None, {"actions": "a&b=1"}),
        ("my.policies:act", "my.policies", "act", None, {}),
        ("mine:make('a?b=c#d', 3)", "mine", "make('a?b=c#d', 3)", None, {}),
        ("mine:make(3)?gain=1", "mine", "make(3)", None, {"gain": 1}),
        ("reach#1.onnx", "reach#1.onnx", None, None, {}),
        ("", "", None, None, {}),
    ],
)
def test_the_parts_of_an_address(address, name, location, part, options):
    parsed = parse_address(address)
    assert (parsed.name, parsed.location, parsed.part, parsed.options) == (name, location, part, options)
    assert parsed.text == address


@pytest.mark.parametrize("address", [Path("reach.onnx"), print, None])
def test_an_address_is_text(address):
    with pytest.raises(UsageError, match=r"invalid policy address .* \(expected text, such as 'onnx:FILE'\)"):
        parse_address(address)


TEXT = st.text(st.characters(codec="ascii", exclude_characters="?#()"), min_size=1)
KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda key: not key.startswith(("api", "trust")))


@given(location=TEXT, number=st.integers(0, 999), options=st.dictionaries(KEYS, st.integers() | st.booleans()))
def test_an_address_has_the_parts_that_it_was_made_of(location, number, options):
    query = "&".join(f"{key}={value}" for key, value in options.items())
    parsed = parse_address(f"run:{location}#{number}" + (f"?{query}" if query else ""))
    assert (parsed.name, parsed.location, parsed.part) == ("run", location, str(number))
    assert parsed.options == options


@given(st.text())
def test_any_text_has_parts_or_is_refused(text):
    try:
        parsed = parse_address(text)
    except UsageError:
        return
    assert text.startswith(parsed.name)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("sb3:a.zip?trust=1", "'trust'; pass it as an argument"),
        ("openpi://h:1?api_key=secret", "'api_key'; pass it"),
        ("gr00t://h:1?api_token=secret", "'api_token'; pass it"),
        ("onnx:a?threads=1&threads=2", "option 'threads' given twice"),
    ],
)
def test_an_option_that_an_address_may_not_have_is_refused(address, problem):
    with pytest.raises(UsageError, match=problem) as refused:
        parse_address(address)
    assert "secret" not in str(refused.value)


def test_a_server_has_a_host_and_a_port():
    assert parse_server("openpi://h:1", 8000) == ("h", 1)
    assert parse_server("openpi://[::1]", 8000) == ("::1", 8000)


@pytest.mark.parametrize("address", ["openpi:h", "openpi://", "openpi://h/path", "openpi://h?x", "openpi://h#x"])
def test_another_form_of_a_server_is_refused(address):
    with pytest.raises(UsageError, match="invalid address of a policy server"):
        parse_server(address, 8000)
