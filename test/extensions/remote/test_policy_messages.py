"""The message formats of openpi and GR00T equal those of their own code byte for byte, bounded and without pickle."""

import contextlib
import functools
import io
import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embodied_env.extensions.remote.policy_messages import WireError, pack, specs_from_message, specs_to_message, unpack

pack_gr00t, unpack_gr00t = functools.partial(pack, protocol="gr00t"), functools.partial(unpack, protocol="gr00t")

# what `openpi_client.msgpack_numpy` (15a9616) writes
OPENPI_REQUEST = (
    "83b16f62736572766174696f6e2f696d61676584c40b5f5f6e6461727261795f5fc3c40464617461c412000102030405060708090a0b0c0d"
    "0e0f1011c4056474797065a37c7531c405736861706593020303b16f62736572766174696f6e2f737461746584c40b5f5f6e646172726179"
    "5f5fc3c40464617461c40c0000003f0000a0bf00004040c4056474797065a33c6634c40573686170659103a670726f6d7074b07069636b20"
    "75702074686520666f726b"
)
OPENPI_ANSWER = (
    "82a7616374696f6e7384c40b5f5f6e6461727261795f5fc3c40464617461c4209a9999999999b93f9a9999999999c93f333333333333d33f"
    "9a9999999999d93fc4056474797065a33c6638c4057368617065920202ad7365727665725f74696d696e6781a8696e6665725f6d73cb4029"
    "000000000000"
)
OPENPI_SCALARS = (
    "85a16183c40d5f5f6e7067656e657269635f5fc3c40464617461cb3ff8000000000000c4056474797065a33c6634a16283c40d5f5f6e7067"
    "656e657269635f5fc3c40464617461f9c4056474797065a33c6938a16384c40b5f5f6e6461727261795f5fc3c40464617461c400c4056474"
    "797065a37c6931c4057368617065920002a16484c40b5f5f6e6461727261795f5fc3c40464617461c40c000000010002000300040005c405"
    "6474797065a33e6932c4057368617065920203a16583c40d5f5f6e7067656e657269635f5fc3c40464617461c3c4056474797065a37c6231"
)
# what GR00T's `MsgSerializer` (38624df) writes
GR00T_REQUEST = (
    "83a8656e64706f696e74aa6765745f616374696f6ea46461746182ab6f62736572766174696f6e83a5766964656f81a365676f82b15f5f6e"
    "6461727261795f636c6173735f5fc3a661735f6e7079c48c934e554d5059010076007b276465736372273a20277c7531272c2027666f7274"
    "72616e5f6f72646572273a2046616c73652c20277368617065273a2028312c20312c20322c20322c2033292c207d20202020202020202020"
    "2020202020202020202020202020202020202020202020202020202020202020202020202020200a000102030405060708090a0ba5737461"
    "746581a361726d82b15f5f6e6461727261795f636c6173735f5fc3a661735f6e7079c488934e554d5059010076007b276465736372273a20"
    "273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028312c20312c2032292c207d20202020"
    "2020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020200a0000003f"
    "0000a0bfa86c616e677561676581a47461736b9191b07069636b2075702074686520666f726ba76f7074696f6e73c0a96170695f746f6b65"
    "6ea6736563726574"
)
GR00T_ANSWER = (
    "9281a361726d82b15f5f6e6461727261795f636c6173735f5fc3a661735f6e7079c490934e554d5059010076007b276465736372273a2027"
    "3c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028312c20322c2032292c207d2020202020"
    "20202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020202020200acdcccc3dcd"
    "cc4c3e9a99993ecdcccc3e80"
)

IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
STATE = np.array([0.5, -1.25, 3.0], np.float32)


def test_openpi_messages_are_those_of_its_own_code():
    request = {"observation/image": IMAGE, "observation/state": STATE, "prompt": "pick up the fork"}
    assert pack(request).hex() == OPENPI_REQUEST
    assert pack({**request, "observation/image": np.asfortranarray(IMAGE)}).hex() == OPENPI_REQUEST
    scalars: dict = {
        "a": np.float32(1.5),
        "b": np.int64(-7),
        "c": np.zeros((0, 2), np.int8),
        "d": np.arange(6, dtype=">i2").reshape(2, 3),
        "e": np.bool_(True),
    }
    assert pack(scalars).hex() == OPENPI_SCALARS
    answer = unpack(bytes.fromhex(OPENPI_ANSWER))
    np.testing.assert_array_equal(answer["actions"], [[0.1, 0.2], [0.3, 0.4]])
    assert answer["server_timing"] == {"infer_ms": 12.5}
    found = unpack(bytes.fromhex(OPENPI_SCALARS))
    for name, value in scalars.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


def test_gr00t_messages_are_those_of_its_own_code():
    observation = {
        "video": {"ego": np.arange(12, dtype=np.uint8).reshape(1, 1, 2, 2, 3)},
        "state": {"arm": STATE[None, None, :2]},
        "language": {"task": [["pick up the fork"]]},
    }
    data = {"observation": observation, "options": None}
    assert pack_gr00t({"endpoint": "get_action", "data": data, "api_token": "secret"}).hex() == GR00T_REQUEST
    action, information = unpack_gr00t(bytes.fromhex(GR00T_ANSWER))
    np.testing.assert_array_equal(action["arm"], np.array([[[0.1, 0.2], [0.3, 0.4]]], np.float32))
    assert information == {}


NUMBERS = arrays.arrays(
    st.one_of(arrays.integer_dtypes(endianness="?"), arrays.floating_dtypes(endianness="?"), arrays.boolean_dtypes()),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
)


@given(NUMBERS, st.booleans())
def test_arrays_survive_both_formats(array, is_fortran):
    array = np.asfortranarray(array) if is_fortran else array
    for there, back in ((pack, unpack), (pack_gr00t, unpack_gr00t)):
        found = back(there({"x": array}))["x"]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


def openpi_array(data=b"\0" * 8, dtype="<f8", shape=(1,)):
    return msgpack.packb({"x": {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}})


def gr00t_array(data):
    return msgpack.packb({"x": {"__ndarray_class__": True, "as_npy": data}})


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def nested(levels):
    return b"\x91" * levels + b"\x01"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa1x",
        b"\x01\x02",
        pickle.dumps({"actions": [1.0]}),
        nested(17),
        nested(1000),
        nested(100_000),
        msgpack.packb(msgpack.ExtType(5, b"abc")),
        b"\xdd\xff\xff\xff\xff",
        b"\x81\x90\x01",
        openpi_array(dtype="|O"),
        openpi_array(dtype="f8,f8"),
        openpi_array(dtype="(2,)f4"),
        openpi_array(dtype=7),
        openpi_array(dtype="<M8[s]"),
        openpi_array(shape=(2,)),
        openpi_array(shape=(-1,)),
        openpi_array(shape=(True,)),
        openpi_array(shape=(1.0,)),
        openpi_array(shape=(1,) * 9),
        openpi_array(shape=(2**62, 2**62, 0), data=b""),
        openpi_array(shape="1"),
        openpi_array(data=None),
        openpi_array(data="12345678"),
        msgpack.packb({"x": {b"__ndarray__": True}}),
        msgpack.packb({"x": {b"__npgeneric__": True, b"data": "a", b"dtype": "<f8"}}),
    ],
)
def test_openpi_data_of_any_other_form_are_refused(data):
    with pytest.raises(WireError):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        gr00t_array(npy(np.array([{}], object), allow_pickle=True)),
        gr00t_array(npy(np.zeros(2, [("a", "f4")]))),
        gr00t_array(npy(STATE)[:-1]),
        gr00t_array(npy(STATE) + b"\0"),
        gr00t_array(npy(STATE).replace(b"(3,)", b"(3000000000,)")),
        gr00t_array(b"PK\x03\x04"),
        gr00t_array(pickle.dumps([1])),
        gr00t_array("text"),
    ],
)
def test_gr00t_data_of_any_other_form_are_refused(data):
    with pytest.raises(WireError):
        unpack_gr00t(data)


def test_messages_are_bounded(monkeypatch):
    monkeypatch.setattr("embodied_env.extensions.remote.policy_messages.MOST_BYTES", 100)
    with pytest.raises(WireError, match="message too large: 1003 bytes \\(expected at most 100\\)"):
        unpack(msgpack.packb(b"\0" * 1000))


@pytest.mark.parametrize("value", [np.array([{}], object), np.zeros(1, "V4"), 1j, object(), {1, 2}, np.complex64(1j)])
def test_other_values_are_not_sent(value):
    for write in (pack, pack_gr00t):
        with pytest.raises(WireError):
            write({"x": value})


@given(st.binary(max_size=200))
def test_random_data_never_raise_another_error(data):
    for read in (unpack, unpack_gr00t):
        with contextlib.suppress(WireError):
            read(data)


def test_specifications_are_those_that_a_server_announces():
    message = {"obs": {"shape": [None, 6], "dtype": "<f4"}, "task": {"shape": [], "dtype": "<U0"}}
    specs = specs_from_message(message)
    assert (specs["obs"].shape, specs["obs"].dtype, specs["task"].dtype.kind) == ((None, 6), np.float32, "U")
    assert specs_to_message(specs) == message
    message = {"a": {"shape": [2], "dtype": "<f4", "low": [-1, -1], "high": [1, 1]}}
    bounds = specs_from_message(message)["a"]
    assert (bounds.low.tolist(), bounds.high.tolist()) == ([-1, -1], [1, 1])
    assert specs_to_message({"a": bounds}) == message
    assert specs_from_message(None) is specs_to_message(None) is None
    for wrong in ("x", {"a": 1}, {"a": {"shape": 3, "dtype": "<f4"}}, {"a": {"shape": [1], "dtype": "O"}}):
        with pytest.raises(WireError):
            specs_from_message(wrong)
