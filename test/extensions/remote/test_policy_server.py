"""``serve`` has openpi's protocol, one client at a time, and an error frame for anything that cannot be answered."""

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, ClassVar

import msgpack
import numpy as np
import onnx_models
import openpi_messages
import pytest
from gymnasium import spaces

import embodied_env
from embodied_env.cli.main import main
from embodied_env.core.policy import FunctionPolicy, NoAction, PolicyIdentity, find_continuing, find_n_action_steps
from embodied_env.errors import UsageError
from embodied_env.extensions.remote.policy_server import PolicyServer, ServedPolicy
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.policies.policy_loader import load_model
from embodied_env.policies.policy_model import ArraySpec

pytest.importorskip("websockets", reason="needs websockets")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

ARM = embodied_env.load_contract("arm_reach")
WEIGHTS = np.arange(12.0).reshape(4, 3)
IDENTITY = PolicyIdentity(name="test", format="test")


class Doubling:
    """A model with a state that counts its inferences since the last reset."""

    identity: ClassVar = IDENTITY
    inputs: ClassVar = {
        "obs": ArraySpec(shape=(3,), dtype=np.dtype(np.float32)),
        "task": ArraySpec(shape=(), dtype=np.dtype(str)),
    }
    outputs: ClassVar = {"action": ArraySpec(shape=(3,), dtype=np.dtype(np.float32))}

    def __init__(self):
        self.resets, self.count = [], 0

    def reset(self, *, seed, episode_index):
        self.resets.append((seed, episode_index))
        self.count = 0

    def infer(self, inputs):
        self.count += 1
        match inputs["task"]:
            case "raise":
                raise RuntimeError("no\nluck")
            case "none":
                return NoAction("camera is dark")
            case "objects":
                return {"action": np.array([object()])}
        return {"action": inputs["obs"] * 2.0, "count": np.array(self.count)}

    def close(self):
        pass


@pytest.fixture
def serve():
    """Return a function that serves a model in a thread and returns the port."""
    threads = []

    def start(model, **options):
        ready, ports = threading.Event(), []

        def on_ready(port):
            ports.append(port)
            ready.set()

        def run():
            async def until_stopped():
                stop = asyncio.Event()
                threads.append((threading.current_thread(), asyncio.get_running_loop(), stop))
                await PolicyServer(model, **options).run("127.0.0.1", 0, stop=stop, on_ready=on_ready)

            asyncio.run(until_stopped())

        threading.Thread(target=run).start()
        assert ready.wait(30.0)
        return ports[0]

    yield start
    for thread, loop, stop in threads:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30.0)
        assert not thread.is_alive()


def open_client(port, **options):
    return connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, **options)


def ask(client, **request):
    client.send(openpi_messages.pack(request))
    answer = client.recv(timeout=30)
    return answer if isinstance(answer, str) else openpi_messages.unpack(answer)


OBS = np.array([1.0, 2.0, 3.0], np.float32)


def test_metadata_first_and_then_an_answer_for_each_request(serve):
    port = serve(Doubling(), contract=ARM)
    with open_client(port) as client:
        about = openpi_messages.unpack(client.recv())["embodied_env"]
        assert about["inputs"]["obs"] == {"shape": [3], "dtype": "<f4"}
        assert about["outputs"] == {"action": {"shape": [3], "dtype": "<f4"}}
        assert (about["identity"]["name"], about["fingerprint"]) == ("test", ARM.fingerprint)
        for count in (1, 2):
            answer = ask(client, obs=OBS, task="lift")
            assert answer.keys() == {"action", "count", "server_timing"}
            assert (answer["action"] == OBS * 2).all()
            assert (answer["action"].dtype, int(answer["count"])) == (np.float32, count)
            assert 0 <= answer["server_timing"]["infer_ms"] < 1000


def test_request_is_repeated_and_an_episode_resets_the_model(serve):
    model = Doubling()
    with open_client(serve(model)) as client:
        client.recv()
        ask(client, obs=OBS, task="")
        about = {"request": {"epoch": 3, "step": 7}, "reset": {"seed": 5, "episode_index": 2}}
        answer = ask(client, obs=OBS, task="", embodied_env=about)
        assert answer["embodied_env"] == {"request": about["request"]}
        assert int(answer["count"]) == 1
    assert model.resets == [(0, 0), (5, 2)]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ("hello", "invalid request: 'hello' (expected a map of inputs in MessagePack)"),
        (b"", "message cannot be decoded"),
        (b"\xc1", "message cannot be decoded"),
        (openpi_messages.pack([1, 2]), "invalid request: [1, 2] (expected a map"),
        (openpi_messages.pack({"task": ""}), "no input 'obs' in the request (expected: obs, task)"),
        (openpi_messages.pack({"obs": OBS[:2], "task": ""}), "input 'obs' has the shape (2,) (expected (3,))"),
        (openpi_messages.pack({"obs": [[1], [2, 3]], "task": ""}), "input 'obs' is no array: [[1], [2, 3]]"),
        (openpi_messages.pack({"obs": ["a", "b", "c"], "task": ""}), "input 'obs' has the dtype str (expected float32)"),
        (openpi_messages.pack({"obs": OBS, "task": 1}), "input 'task' has the dtype int64 (expected str)"),
        (openpi_messages.pack({"obs": OBS, "task": "", "embodied_env": 3}), "invalid request"),
        (openpi_messages.pack({"obs": OBS, "task": "", "embodied_env": {"reset": {"seed": []}}}), "invalid reset: {'seed': []}"),
        (openpi_messages.pack({"obs": OBS, "task": "raise"}), "RuntimeError: no luck"),
        (openpi_messages.pack({"obs": OBS, "task": "none"}), "camera is dark"),
        (openpi_messages.pack({"obs": OBS, "task": "objects"}), "message cannot be encoded"),
        (b"\x91" * 100_000 + b"\x00", "message cannot be decoded"),
        (msgpack.packb({b"__ndarray__": True, b"dtype": "|O", b"data": b"", b"shape": [0]}), "message cannot be decoded"),
    ],
)  # fmt: skip
def test_error_frame_for_what_cannot_be_answered(serve, request_, problem):
    with open_client(serve(Doubling())) as client:
        client.recv()
        client.send(request_)
        answer = client.recv(timeout=30)
        assert isinstance(answer, str)
        assert answer.startswith(problem), answer
        assert (ask(client, obs=OBS, task="")["action"] == OBS * 2).all()


def test_a_flood_of_errors_is_logged_a_few_times(serve, caplog):
    with open_client(serve(Doubling())) as client:
        client.recv()
        for number in range(1000):
            client.send(f"flood {number}")
            assert f"flood {number}" in client.recv(timeout=30)
    assert 0 < sum("flood" in record.message for record in caplog.records) <= 25


def test_request_above_the_limit_closes_the_connection_only(serve):
    port = serve(Doubling())
    with open_client(port) as client:
        client.recv()
        client.socket.sendall(b"\x82\xff" + (2**40).to_bytes(8, "big") + b"\0\0\0\0")
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(timeout=30)
        assert caught.value.rcvd.code == 1009
    with open_client(port) as client:
        client.recv()
        assert (ask(client, obs=OBS, task="")["action"] == OBS * 2).all()


def test_second_client_is_refused_while_the_first_acts(serve, monkeypatch):
    monkeypatch.setattr("embodied_env.extensions.remote.policy_server._BUSY_GRACE_S", 0.1)
    port = serve(Doubling())
    with open_client(port) as first:
        first.recv()
        with pytest.raises(InvalidStatus) as caught:
            open_client(port)
        response = caught.value.response
        assert (response.status_code, response.body) == (
            503, b"another client is connected (expected one); close it, or start another server\n",
        )  # fmt: skip
        with pytest.raises(UsageError, match="another client is connected"):
            load_model(f"openpi://127.0.0.1:{port}", connect_timeout_s=0.3)
        assert "action" in ask(first, obs=OBS, task="")
    with open_client(port) as second:
        assert "embodied_env" in openpi_messages.unpack(second.recv())


def test_health_check_and_foreign_connections(serve):
    port = serve(Doubling())
    with socket.create_connection(("127.0.0.1", port)) as noise:
        noise.sendall(b"\x16\x03\x01 no HTTP \r\n\r\n")
    http_client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    http_client.request("GET", "/healthz")
    response = http_client.getresponse()
    assert (response.status, response.read()) == (200, b"OK\n")
    http_client.close()
    with pytest.raises(InvalidStatus, match="403"):
        open_client(port, origin="http://example.org")


@pytest.mark.parametrize("length", [None, 1, 3])
def test_policy_of_a_contract_returns_rows_of_actions(length):
    def act(observation):
        action = observation["joints_position"] + 1
        return action if length is None else np.tile(action, (length, 1))

    model = ServedPolicy(FunctionPolicy(act, IDENTITY), ARM)
    assert model.inputs.keys() == ARM.observation_space.spaces.keys()
    inputs = {key: np.zeros(spec.shape) for key, spec in model.inputs.items()}
    assert (model.infer(inputs)["actions"] == np.ones((length or 1, 6))).all()


def test_served_policy_of_two_actuators_has_the_joints_in_order():
    door = embodied_env.load_contract("door_open")
    space = door.action_space
    space.seed(1)
    action = space.sample()
    policy = FunctionPolicy(lambda _: action, IDENTITY)
    model = ServedPolicy(policy, door)
    (rows,) = model.infer({key: np.zeros(spec.shape) for key, spec in model.inputs.items()})["actions"]
    assert rows.tolist() == np.concatenate(list(action.values()) if isinstance(action, dict) else [action]).tolist()


@pytest.mark.parametrize("contract", [None, ARM])
def test_remote_policy_equals_the_local_one(close_later, serve, tmp_path, contract):
    pytest.importorskip("onnxruntime")
    weights = np.random.default_rng(0).normal(size=(spaces.flatdim(ARM.observation_space), 6))
    (tmp_path / "policy.onnx").write_bytes(onnx_models.linear(weights))
    address = f"onnx:{tmp_path / 'policy.onnx'}"
    local = embodied_env.load_policy(address, ARM)
    port = serve(load_model(address) if contract is None else ServedPolicy(local, ARM), contract=contract)
    remote = close_later(embodied_env.load_policy(f"openpi://127.0.0.1:{port}", ARM))
    ARM.observation_space.seed(3)
    for _ in range(3):
        observation = ARM.observation_space.sample()
        assert np.ravel(remote(observation)).tolist() == local(observation).tolist()
    assert remote.identity.server["embodied_env"]["identity"]["name"] == address


class Continuing:
    """A policy that returns chunks, and may continue them."""

    identity, continues_chunks = IDENTITY, True
    n_action_steps: int

    def __init__(self):
        self.prefixes = []

    def reset(self, **_):
        pass

    def __call__(self, observation):
        return np.zeros((8, 6))

    def continue_chunk(self, *, executed, delay):
        self.prefixes.append((executed, delay))

    def close(self):
        pass


def test_served_policy_continues_its_chunk_if_the_client_executes_it(serve):
    policy = Continuing()
    port = serve(ServedPolicy(policy, ARM), contract=ARM)
    remote: Any = embodied_env.load_policy(f"openpi://127.0.0.1:{port}", ARM)
    runner = ChunkRunner(remote, "rtc")
    runner.reset(seed=0, episode_index=0)
    ARM.observation_space.seed(3)
    for _ in range(10):
        runner(ARM.observation_space.sample())
    assert policy.prefixes == [(4, 0), (4, 0)]
    remote.continue_chunk(executed=2, delay=1)
    remote.model._last = 17, {}  # the answer was lost
    remote(ARM.observation_space.sample())
    assert len(policy.prefixes) == 2
    runner.close()
    with contextlib.closing(load_model(f"openpi://127.0.0.1:{serve(Doubling())}?rtc=True")) as model:
        assert find_continuing(model) is None
        assert find_n_action_steps(model) is None


def test_client_executes_as_many_actions_of_a_chunk_as_the_served_policy(serve):
    policy = Continuing()
    policy.n_action_steps = 3
    remote = embodied_env.load_policy(f"openpi://127.0.0.1:{serve(ServedPolicy(policy, ARM), contract=ARM)}", ARM)
    assert find_n_action_steps(remote) == 3
    ARM.observation_space.seed(3)
    assert remote(ARM.observation_space.sample()).shape == (8, 6)
    remote.close()


def wait_for_line(process):
    line = process.stdout.readline()
    assert line.startswith("serving "), (line, process.stderr.read() if process.poll() is not None else "")
    return int(line.partition("127.0.0.1:")[2].partition(";")[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_served_onnx_file_ends_by_a_signal_with_a_client_connected(tmp_path, number):
    pytest.importorskip("onnxruntime")
    (tmp_path / "a.onnx").write_bytes(onnx_models.linear(WEIGHTS))
    (tmp_path / "a.policy.yaml").touch()
    command = [sys.executable, "-m", "embodied_env.cli", "serve", "onnx:a.onnx", "--port", "0"]
    pipes: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:
        try:
            with open_client(wait_for_line(process)) as client:
                about = openpi_messages.unpack(client.recv())["embodied_env"]
                assert about["policy_file"] == "a.policy.yaml"
                assert about["inputs"] == {"observation": {"shape": [4], "dtype": "<f4"}}
                assert (ask(client, observation=np.ones(4))["action"] == WEIGHTS.sum(axis=0)).all()
                os.kill(process.pid, number)
                with pytest.raises(ConnectionClosed) as caught:
                    client.recv(timeout=30)
                assert caught.value.rcvd.code == 1001
            note = "note: clients apply a.policy.yaml (--policy-file); with --contract, this server does\n"
            assert (process.wait(30), process.stderr.read()) == (0, note)
        finally:
            process.kill()


def test_wrong_usage_is_one_line(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "hold", "--contract", "arm_reach", "--port", port]) == 2
        assert f"cannot listen on 127.0.0.1:{port}: OSError" in capsys.readouterr().err
    assert main(["serve", "onnx:none", "--policy-file", "a.yaml", "--port", "0"]) == 2
    assert "--policy-file requires --contract" in capsys.readouterr().err
    assert main(["serve", "hold", "--port", "0"]) == 2
    problem = capsys.readouterr().err
    assert "unknown model 'hold'" in problem
    assert "any other policy needs a contract" in problem
