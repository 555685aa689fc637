"""Models on policy servers over real sockets equal local ones within their deadline, without another's answer."""

import contextlib
import json
import multiprocessing
import re
import socket
import sys
import threading
import time
from typing import Any

import msgpack
import numpy as np
import pytest
from evidence import assert_sound
from policy_servers import pack_gr00t, pack_openpi, serve_gr00t, serve_openpi, unpack_gr00t, unpack_openpi
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.policy import NoAction, find_required_sensors
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.policies.policy_loader import load_model

pytest.importorskip("websockets")
zmq: Any = pytest.importorskip("zmq")

ARM = changed_contract(embodied_env.load_contract("arm_reach"), {"episode.horizon_steps": 5})
PATIENCE_S = 20.0
CHUNK = np.arange(12.0).reshape(2, 6) / 100
STAGES = ("encode", "wire", "server", "decode")
STATE = {"state": np.arange(3, dtype=np.float32), "prompt": "reach"}
ANNOUNCED = pack_openpi(
    {
        "embodied_env": {
            "inputs": {"state": {"shape": [3], "dtype": "<f4"}},
            "outputs": {"actions": {"shape": [None, 6], "dtype": "<f8"}},
            "identity": {"name": "onnx:reach.onnx"},
        }
    }
)


@pytest.fixture
def load():
    with contextlib.ExitStack() as stack:

        def load(address, **options):
            model = load_model(address, **{"connect_timeout_s": PATIENCE_S, "timeout_s": PATIENCE_S, **options})
            stack.callback(model.close)
            model.reset(seed=0, episode_index=0)
            return model

        yield load


def echo(request, connection=None):
    """Answer with the chunk, and repeat the id of the request if there is one."""
    extension = request.get("embodied_env")
    return {"actions": CHUNK} | ({} if extension is None else {"embodied_env": {"request": extension["request"]}})


def problems(model):
    account = model.take_account()
    return {key: value for key, value in account.items() if not key.endswith("_s") and value}


# ---------------------------------------------------------------------------------------------------------------- openpi


def test_a_foreign_server_receives_what_the_client_of_openpi_sends(load):
    answer = {"actions": CHUNK, "server_timing": {"infer_ms": 0.001}, "policy_timing": {"infer_ms": 1.0}}
    with serve_openpi(lambda *_: answer, metadata=pack_openpi({"reset_pose": np.zeros(2)})) as (address, requests):
        model = load(f"openpi://{address}")
        assert (model.inputs, model.outputs) == (None, None)
        assert (model.identity.format, model.identity.server) == ("openpi", {"reset_pose": [0.0, 0.0]})
        outputs = model.infer(STATE)
        assert list(outputs) == ["actions"]
        np.testing.assert_array_equal(outputs["actions"], CHUNK)
        assert outputs["actions"].flags.writeable
        assert requests == [pack_openpi(STATE)]
        account = model.take_account()
        assert account["server_s"] == pytest.approx(1e-6)
        assert all(account[f"{stage}_s"] > 0.0 for stage in ("encode", "wire", "decode"))
        assert model.take_account() is None


def test_what_is_left_of_a_chunk_is_sent_on_request(load):
    with serve_openpi(lambda *_: {"actions": CHUNK}) as (address, requests):
        model = load(f"openpi://{address}?rtc=True")
        assert model.continues_chunks
        model.continue_chunk(executed=1, delay=1)
        for _ in range(2):  # there is no chunk before the first one
            model.infer(STATE)
            model.continue_chunk(executed=1, delay=3)
        model.infer(STATE)
        model.infer(STATE)
        model.continue_chunk(executed=1, delay=3)
        model.reset(seed=0, episode_index=1)
        model.infer(STATE)
    found = [unpack_openpi(request) for request in requests]
    assert ["prev_action_chunk" in request for request in found] == [False, True, True, False, False]
    assert found[1]["prev_action_chunk"].tolist() == CHUNK[1:].tolist()
    assert found[1]["inference_delay"] == 3


def test_inputs_are_nested_on_request(load):
    with serve_openpi(echo) as (address, requests):
        load(f"openpi://{address}?nested=True").infer({"images.left": STATE["state"], "images.right": 2, "state": 3})
    assert requests == [pack_openpi({"images": {"left": STATE["state"], "right": 2}, "state": 3})]


def test_our_own_server_receives_the_number_of_the_request_and_the_reset(load):
    with serve_openpi(echo, metadata=ANNOUNCED) as (address, requests):
        model = load(f"openpi://{address}?timeout_s=1.5")
        assert model.options["timeout_s"] == 1.5
        assert model.inputs["state"].shape == (3,)
        assert model.outputs["actions"].shape == (None, 6)
        for _ in range(2):
            assert "actions" in model.infer(STATE)
        model.reset(seed=7, episode_index=1)
        model.infer(STATE)
    extensions = [unpack_openpi(request)["embodied_env"] for request in requests]
    assert [each["request"] for each in extensions] == [
        {"epoch": 1, "step": 1},
        {"epoch": 1, "step": 2},
        {"epoch": 2, "step": 1},
    ]
    first, second = {"seed": 0, "episode_index": 0}, {"seed": 7, "episode_index": 1}
    assert [each.get("reset") for each in extensions] == [first, None, second]


@pytest.mark.needs("evaluation")
def test_a_policy_on_a_server_runs_and_its_inference_is_accounted_for(tmp_path, capsys):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.evaluation.evaluation_display import print_table

    answer = {"actions": CHUNK, "server_timing": {"infer_ms": 1e-3}}
    options = {"backend": "fake", "episodes": 2, "seed": 0, "record": tmp_path, "clock": "virtual"}
    with serve_openpi(lambda *_: answer) as (address, requests):
        evaluation = evaluate(ARM, f"openpi://{address}", **options)
    (done,) = evaluation.results
    assert len(requests) == 1 + 2 * 3  # at load, and a chunk of two for five steps
    assert_sound(done.path)
    counts = {stage: done.summary["latency"][f"inference.{stage}_s"]["count"] for stage in STAGES}
    assert counts == dict.fromkeys(STAGES, 6)
    rows = [row["info"] for row in embodied_env.read_run(done.path).transitions()]
    assert ["inference" in info["annotations"] for info in rows] == [True, False, True, False, True] * 2
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["policy"]["server"] == {}
    print_table(evaluation)
    assert "inference.server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reply", "problem", "reason"),
    [
        ({"actions": CHUNK[:, :5]}, "malformed", r"float64 \[2, 5\] \(expected float64 \[any, 6\]\)"),
        ({"actions": CHUNK[0]}, "malformed", r"float64 \[6\] \(expected"),
        ({"actions": np.zeros((5000, 6))}, "malformed", "has 5000 rows"),
        ({"actions": CHUNK > 0}, "malformed", r"bool \[2, 6\] \(expected numbers"),
        ({"actions": CHUNK.astype(np.int64)}, "malformed", r"int64 \[2, 6\] \(expected float64"),
        ({"actions": CHUNK.astype(np.uint8)}, "malformed", r"uint8 \[2, 6\] \(expected float64"),
        ({"actions": CHUNK.tolist()}, "malformed", "no output 'actions' in the answer"),
        ("Traceback ...\n  File ...\nValueError: no image\n", "refused", "ValueError: no image"),
    ],
)
def test_a_wrong_answer_is_counted_and_the_next_one_is_used(load, reply, problem, reason):
    replies = [{"actions": CHUNK}, reply, {"actions": CHUNK + 1}]
    with serve_openpi(lambda *_: replies.pop(0)) as (address, _):
        model = load(f"openpi://{address}")
        model.infer(STATE)
        answer = model.infer(STATE)
        assert isinstance(answer, NoAction)
        assert problems(model) == {problem: 1}
        assert re.search(reason, answer.reason), answer.reason
        np.testing.assert_array_equal(model.infer(STATE)["actions"], CHUNK + 1)


@pytest.mark.parametrize("is_between", [False, True])
def test_the_reason_with_which_a_server_closes_is_kept(load, caplog, is_between):
    def answer(request, connection):
        if len(requests) == 1 and is_between:
            connection.send(pack_openpi({"actions": CHUNK}))
        if len(requests) == 1:
            connection.close(1011, "CUDA out of memory")
            return []
        return {"actions": CHUNK}

    with serve_openpi(answer) as (address, requests):
        model = load(f"openpi://{address}")
        first = model.infer(STATE)
        if is_between:
            end, expected = (
                time.monotonic() + PATIENCE_S,
                f"{model.address} closed the connection: 1011 CUDA out of memory",
            )
            while model._socket.is_open:  # until the message that closes it has arrived
                assert time.monotonic() < end
                model._socket.poll(end)
                time.sleep(0.001)
            assert "actions" in model.infer(STATE)
            assert expected in caplog.text
        else:
            assert first == NoAction("connection closed by the server: 1011 CUDA out of memory")
            assert problems(model) == {"lost": 1}


@pytest.mark.needs("evaluation")
@pytest.mark.realtime
@pytest.mark.parametrize(("options", "chunks"), [("", "wait"), ("?timeout_s=0.3", "crossfade")])
def test_a_silent_server_at_the_start_of_an_episode_is_named_and_blocks_no_step(tmp_path, options, chunks):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    contract = changed_contract("arm_reach", {"policy": {"max_missed": 4}})
    robot = {"backend": "mujoco", "pacing": "realtime", "episodes": 1, "chunks": chunks, "record": tmp_path}
    replies = [{"actions": CHUNK}]  # at load
    with serve_openpi(lambda *_: [replies.pop()] if replies else []) as (address, _):
        (done,) = evaluate(contract, f"openpi://{address}{options}", **robot).results
    ((reason, count),) = done.summary["end_reasons"].items()
    assert (reason, count) in {("policy_lost:no answer in time", 1), ("policy_lost:late", 1)}  # late: a busy machine
    waits_s = [row["info"]["latency"]["policy_s"] for row in embodied_env.read_run(done.path).transitions()]
    assert chunks == "wait" or all(wait_s < 0.3 for wait_s in sorted(waits_s)[1:2])
    assert_sound(done.path)


@pytest.mark.parametrize(
    ("options", "limit_s", "bound_s"),
    [({}, 0.4, 0.4), ({}, 3.0, 1.0), ({}, 0.0, 1.0), ({"timeout_s": 0.2}, 0.4, 0.2), ({"timeout_s": 0.7}, 0.4, 0.7)],
)
def test_only_the_default_time_limit_is_bounded(load, options, limit_s, bound_s):
    with serve_openpi(echo) as (address, _):
        assert load(f"openpi://{address}", **{"timeout_s": None, **options}).bound_wait(limit_s) == bound_s


def test_an_answer_of_another_request_is_foreign(load):
    def swapped(request, connection):
        answer = echo(request)
        answer["embodied_env"]["request"] = {"epoch": 1, "step": request["embodied_env"]["request"]["step"] - 1}
        return answer

    for reply in (swapped, lambda *_: {"actions": CHUNK}, lambda *_: {"actions": CHUNK, "embodied_env": 3}):
        with serve_openpi(reply, metadata=ANNOUNCED) as (address, _):
            model = load(f"openpi://{address}")
            assert model.infer(STATE) == NoAction("answer to another request")
            assert problems(model) == {"foreign": 1}


def test_the_sensors_of_a_served_policy_are_required():
    metadata = {"embodied_env": {"fingerprint": ARM.fingerprint, "required_sensors": ["tcp"]}}
    with serve_openpi(echo, metadata=pack_openpi(metadata)) as (address, _):
        policy = embodied_env.load_policy(f"openpi://{address}", ARM)
        assert find_required_sensors(policy) == ("tcp",)
        policy.close()


@pytest.mark.parametrize(
    ("announced", "problem"),
    [
        ({"fingerprint": ARM.fingerprint, "instruction": "wave"}, r"for another task\.instruction: 'wave'"),
        ({"policy_file": "a.policy.yaml"}, r"without its policy file: a\.policy\.yaml"),
        ({"fingerprint": "0" * 64}, r"for another contract: 000000000000 \(expected .*arm_reach"),
    ],
)
def test_a_server_for_another_contract_or_prompt_or_without_its_policy_file_is_refused(announced, problem):
    with serve_openpi(echo, metadata=pack_openpi({"embodied_env": announced})) as (address, requests):
        with pytest.raises(UsageError, match=f"is served {problem}"):
            embodied_env.load_policy(f"openpi://{address}", ARM)
        assert requests == []


def test_a_server_with_one_prompt_refuses_another(load):
    announced = {"fingerprint": ARM.fingerprint, "instruction": ARM.task.instruction}
    with serve_openpi(echo, metadata=pack_openpi({"embodied_env": announced})) as (address, _):
        model = load(f"openpi://{address}")
        model.instruct(ARM.task.instruction)
        with pytest.raises(UsageError, match=r"is served with one prompt: .*expected 'wave'"):
            model.instruct("wave")


def test_a_server_that_never_reads_does_not_extend_the_deadline(load):
    listener = socket.create_server(("127.0.0.1", 0))
    with serve_openpi(lambda *_: {"actions": CHUNK}) as (address, _), listener:
        model = load(f"openpi://{address}")
        model.infer(STATE)
        model._timeout_s = 0.2
        model._target = (socket.AF_INET, listener.getsockname())
        model._disconnect()
        for _ in range(2):  # the half-open connection is kept for the next step
            begun = time.monotonic()
            assert model.infer(STATE) == NoAction("no connection in time")
            assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (b"\xc1", "message cannot be decoded"),
        (msgpack.packb({"x": b"bytes"}), "expected JSON types"),
        (msgpack.packb({"x": "y" * 20000}), "invalid metadata: JSON of 20009 characters"),
        (lambda _: time.sleep(0.6) or b"\x80", "within 0.5 s"),
    ],
)
def test_a_server_with_wrong_metadata_is_refused_at_load(load, metadata, reason):
    timeout_s = 0.5 if "within" in reason else PATIENCE_S
    with serve_openpi(echo, metadata=metadata) as (address, _), pytest.raises(UsageError, match=reason):
        load(f"openpi://{address}", connect_timeout_s=timeout_s)


@pytest.mark.parametrize("scheme", ["openpi", "gr00t"])
def test_a_server_that_is_not_there_is_refused_at_load(load, scheme, monkeypatch, caplog):
    monkeypatch.setattr("embodied_env.extensions.remote.openpi_model._SILENT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(UsageError, match=f"cannot connect to {address}: .* \\(expected a policy server that answers"):
        load(address, connect_timeout_s=0.3)
    waiting = [f"waiting up to 0.3 s for {address}: connection refused"] if scheme == "openpi" else []
    assert caplog.messages == waiting


@pytest.mark.parametrize("address", ["openpi://host.invalid:8000", f"gr00t://{'a' * 64}:8000", "gr00t://a..b:8000"])
def test_an_unknown_host_is_refused(load, address):
    with pytest.raises(UsageError, match="cannot find the host"):
        load(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("openpi:127.0.0.1:8000", "expected openpi://host:port, for example openpi://127.0.0.1:8000"),
        ("openpi://", "expected openpi://host:port"),
        ("openpi://h:99999", "expected openpi://host:port"),
        ("openpi://[::1:8000", "expected openpi://host:port"),
        ("openpi://h:1/path", "expected openpi://host:port"),
        ("openpi://user@h:1", "expected openpi://host:port"),
        ("openpi://h:1?timeout=1", "did you mean 'timeout_s'"),
        ("openpi://h:1?timeout_s=soon", "invalid timeout_s='soon'"),
        ("openpi://h:1?timeout_s=nan", "invalid timeout_s='nan'"),
        ("openpi://h:1?timeout_s=0", "invalid timeout_s=0"),
        ("openpi://h:1?nested=2", "invalid nested=2"),
        ("openpi://h:1?api_key=x", "unknown option .* 'api_key'"),
        ("gr00t://h:1?release=n1.7", "unknown release 'n1.7'"),
        ("gr00t://h:1?release=[1]", r"unknown release '\[1\]'"),
        ("gr00t://h:0", "for example gr00t://127.0.0.1:5555"),
    ],
)
def test_invalid_addresses_are_refused(address, reason):
    with pytest.raises(UsageError, match=reason):
        load_model(address)


@pytest.mark.parametrize(
    ("package", "scheme"), [("websockets", "openpi"), ("msgpack", "openpi"), ("msgpack", "gr00t"), ("zmq", "gr00t")]
)
def test_a_missing_package_is_named_with_its_remedy(load, monkeypatch, package, scheme):
    with serve_openpi(echo) as (address, _):
        for name in {package, *(name for name in sys.modules if name.startswith(f"{package}."))}:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr("embodied_env.extensions.remote.policy_messages._packers", threading.local())
        with pytest.raises(MissingDependencyError, match=r'pip install "embodied_env\[remote\]"'):
            load(f"{scheme}://{address}")


def test_the_key_is_sent_and_not_recorded(load, monkeypatch):
    seen = []

    def metadata(connection):
        seen.append(connection.request.headers.get("Authorization"))
        return b"\x80"

    with serve_openpi(echo, metadata=metadata) as (address, _):
        load(f"openpi://{address}", api_key="secret")
        monkeypatch.setenv("OPENPI_API_KEY", "other")
        model = load(f"openpi://{address}")
    assert seen == ["Api-Key secret", "Api-Key other"]
    assert "other" not in str(model.identity.as_mapping())


def infer_in_fork(model, observation, results):
    results.put({name: array.tolist() for name, array in model.infer(observation).items()})
    model.close()


@pytest.mark.parametrize("scheme", ["openpi", "gr00t"])
def test_a_fork_connects_by_itself_and_leaves_the_connection_alone(load, scheme):
    serve = serve_openpi(echo) if scheme == "openpi" else serve_gr00t(answer_gr00t)
    observation = STATE if scheme == "openpi" else {"state.arm": STATE["state"]}
    with serve as (address, _):
        model = load(f"{scheme}://{address}")
        (first,) = model.infer(observation).values()
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=infer_in_fork, args=(model, observation, results))
        child.start()
        assert results.get(timeout=10)
        child.join()
        (second,) = model.infer(observation).values()
        np.testing.assert_array_equal(first, second)
        assert problems(model) == {}


def test_a_model_may_be_closed_by_another_thread(load):
    entered, closed = threading.Event(), threading.Event()

    def answer(request, connection):
        entered.set()
        closed.wait(5.0)
        return {"actions": CHUNK}

    with serve_openpi(answer) as (address, _):
        model = load(f"openpi://{address}")

        def close():
            entered.wait(5.0)
            model.close()
            closed.set()

        thread = threading.Thread(target=close)
        thread.start()
        assert "actions" in model.infer(STATE)
        thread.join()
        assert model._socket is None
        assert model.infer(STATE) == NoAction("policy is closed")


# ----------------------------------------------------------------------------------------------------------------- GR00T


def answer_gr00t(request):
    if request["endpoint"] == "get_action":
        return [{"arm": CHUNK[None].astype(np.float32)}, {}]
    return {"status": "ok"}


def test_a_server_of_gr00t_receives_what_its_own_client_sends(load):
    with serve_gr00t(answer_gr00t) as (address, requests):
        model = load(f"gr00t://{address}", api_token="s")  # noqa: S106
        inputs = {
            "video.ego": np.zeros((4, 4, 3), np.uint8),
            "state.arm": np.zeros(6),
            "language.task": "pick up the fork",
        }
        for _ in range(2):
            outputs = model.infer(inputs)
        np.testing.assert_array_equal(outputs["action.arm"], CHUNK.astype(np.float32))
        assert model.identity.server == {"status": "ok"}
    sent = [unpack_gr00t(request) for request in requests]
    assert {each["api_token"] for each in sent} == {"s"}
    endpoints = ["ping", "get_modality_config", "get_modality_config", "reset", "get_action", "get_action"]
    assert [each["endpoint"] for each in sent] == endpoints
    observation = sent[-1]["data"]["observation"]
    assert observation["video"]["ego"].shape == (1, 1, 4, 4, 3)
    assert (observation["state"]["arm"].shape, observation["state"]["arm"].dtype) == ((1, 1, 6), np.float32)
    assert observation["language"] == {"task": [["pick up the fork"]]}


def test_a_server_of_an_older_release_receives_flat_observations(load):
    def answer(request):
        if request["endpoint"] == "get_modality_config":
            return {"error": "Unknown endpoint: get_modality_config"}
        return {"action.arm": CHUNK} if request["endpoint"] == "get_action" else {"status": "ok"}

    with serve_gr00t(answer) as (address, requests):
        model = load(f"gr00t://{address}?release=n1.5")
        task = "annotation.human.task_description"
        inputs = {"video.ego": np.zeros((4, 4, 3), np.uint8), "state.arm": np.zeros(6), task: "fork"}
        np.testing.assert_array_equal(model.infer(inputs)["action.arm"], CHUNK)
    data = unpack_gr00t(requests[-1])["data"]
    assert (data["video.ego"].shape, data["state.arm"].shape, data[task]) == ((1, 4, 4, 3), (1, 6), ["fork"])


@pytest.mark.parametrize(
    ("reply", "problem", "reason"),
    [
        ({"error": "no image"}, "refused", "error of the server: no image"),
        (b"ERROR", "refused", "error without a text"),
        (b"\xc1", "malformed", "cannot be decoded"),
        ({"arm": CHUNK}, "malformed", "no pair of action and information"),
        ([{"arm": CHUNK}, {}], "malformed", "no batch of one"),
        ([{"arm": np.full((1, 2, 6), np.nan, np.float32)}, {}], "malformed", "not finite"),
        ([{"arm": CHUNK[None]}, {}], "malformed", "float64 [2, 6] (expected float32 [any, 6])"),
        ([{"leg": CHUNK[None]}, {}], "malformed", "no output 'action.arm'"),
        ([bytes(2**20)] * 50, "malformed", "several parts"),
        (None, "late", "no answer in time"),
    ],
)
def test_a_wrong_answer_of_gr00t_is_counted_and_the_next_one_is_used(load, reply, problem, reason):
    good = answer_gr00t({"endpoint": "get_action"})
    replies, missed = [good, reply], threading.Event()

    def answer(request):
        if request["endpoint"] != "get_action":
            return {}
        if (found := replies.pop(0) if replies else good) is None:
            missed.wait()
            return [{"arm": CHUNK[None] + 9}, {}]
        return found

    inputs = {"state.arm": STATE["state"]}
    with serve_gr00t(answer) as (address, _):
        model = load(f"gr00t://{address}", timeout_s=0.2 if reply is None else 10.0)
        model.infer(inputs)
        failed = model.infer(inputs)
        missed.set()
        assert reason in failed.reason
        assert problems(model) == {problem: 1}
        for _ in range(50):  # on a busy machine another answer may be late
            if not isinstance(found := model.infer(inputs), NoAction):
                break
        np.testing.assert_array_equal(found["action.arm"], CHUNK.astype(np.float32))


def test_an_unknown_input_of_gr00t_is_refused(load):
    with serve_gr00t(answer_gr00t) as (address, _):
        model = load(f"gr00t://{address}")
        with pytest.raises(UsageError, match=r"unknown input of .*'joints_position' \(expected video"):
            model.infer({"joints_position": np.zeros(6)})


def test_a_restarted_server_of_gr00t_with_another_configuration_is_another_model(load):
    configuration = {"state": 6}

    def answer(request):
        return dict(configuration) if request["endpoint"] == "get_modality_config" else answer_gr00t(request)

    with serve_gr00t(answer) as (address, _):
        model = load(f"gr00t://{address}")
        model.infer({"state.arm": STATE["state"]})
        configuration["state"] = 7
        model.reset(seed=0, episode_index=1)
        assert "with other metadata" in model.infer({"state.arm": STATE["state"]}).reason
        assert problems(model) == {"foreign": 1}


def test_a_second_answer_of_gr00t_is_discarded(load):

    def serve(router):
        envelope = []
        for count in range(6):
            before, (*envelope, request) = envelope, router.recv_multipart()
            reply = answer_gr00t(unpack_gr00t(request))
            if count == 5:  # also one to the request before
                reply[0]["arm"] += 1
                router.send_multipart([*before, pack_gr00t([{"arm": CHUNK[None] + 9}, {}])])
            router.send_multipart([*envelope, pack_gr00t(reply)])

    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        thread = threading.Thread(target=serve, args=(router,))
        thread.start()
        model = load(f"gr00t://127.0.0.1:{port}")
        model.infer({"state.arm": STATE["state"]})
        found = model.infer({"state.arm": STATE["state"]})
        thread.join()
        np.testing.assert_array_equal(found["action.arm"], (CHUNK + 1).astype(np.float32))
