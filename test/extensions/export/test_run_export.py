"""Each export, read by its own library, equals the run."""

import io
import json
import shutil
import sys
import types
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from middleware_backend import two_actuators
from run_files import with_a_chunk_per_row
from shipped_contracts import changed_contract
from strategies import ABSENT

import embodied_env
from embodied_env.cli.main import main
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.export.exported_episodes import EpisodeReader, ExportedStep, leaves_of_space, open_episodes
from embodied_env.extensions.export.lerobot_columns import Columns, ColumnStatistics
from embodied_env.extensions.export.run_export import FORMATS, export_run
from embodied_env.record import RecordTransitions, read_run
from embodied_env.testing import ScriptedFault
from embodied_env.timing.clock import ManualClock

ARM = embodied_env.load_contract("arm_reach")
SHORT = replace(ARM, episode=replace(ARM.episode, horizon_steps=4))
DOOR = embodied_env.load_contract("door_open")
MORE_JOINTS = {
    "topic": "more_joints",
    "type": "sensor_msgs/msg/JointState",
    "fields": {"position": {"joints": ["j1"], "unit": "rad", "low": -6.6, "high": 6.6}},
    "max_age_s": 0.15,
}
NEEDS = {"parquet": ["pyarrow"], "minari": ["pyarrow", "minari", "PIL"], "lerobot": ["pyarrow"], "jsonl": []}


def needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason=f"this export needs {module}")


def recorded(folder, contract=SHORT, *, episodes=2, wrap=lambda env: env, actions=None, **options):
    made = EmbodiedEnv(contract, backend="fake", clock="virtual", **options)
    env = RecordTransitions(wrap(made), folder, policy="test")
    rng = np.random.default_rng(0)
    with env:
        for episode in range(episodes):
            env.reset(seed=episode)
            ended = False
            while not ended:
                action = rng.uniform(-1, 1, 6) if actions is None else actions.pop(0)
                *_, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
    return env.path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def seen_run(tmp_path_factory):
    """Record a run with a camera and a depth camera, whose episodes have one step each."""
    return recorded(tmp_path_factory.mktemp("runs"), "door_open")


def steps_of(run, **options):
    return [item for item in open_episodes(read_run(run), **options) if isinstance(item, ExportedStep)]


def endings_of(run, **options):
    return [item for item in open_episodes(read_run(run), **options) if not isinstance(item, ExportedStep)]


# ----------------------------------------------------------------------------------------------------------- contents


def test_step_has_its_observation_and_applied_action(run):
    opened = read_run(run)
    rows, (first, second) = list(opened.rows()), steps_of(run)[:2]
    np.testing.assert_array_equal(first.observation["joints_position"], rows[0]["observation"]["joints_position"])
    np.testing.assert_array_equal(second.observation["joints_position"], rows[1]["observation"]["joints_position"])
    np.testing.assert_array_equal(first.action[""], np.float32(rows[1]["action"]))  # the precision of the action space
    assert first.action_applied[""].dtype == np.float64  # the precision of the gate
    np.testing.assert_array_equal(first.action_applied[""], rows[1]["info"]["action"]["applied"])
    assert not np.array_equal(first.action[""], first.action_applied[""])
    assert first.reward == rows[1]["reward"]


def test_timestamps_are_of_the_world_in_lockstep_whatever_time_the_host_takes(tmp_path):
    clock = ManualClock()
    env = EmbodiedEnv(SHORT, backend="fake", clock=clock)
    with RecordTransitions(env, tmp_path) as recorder:
        recorder.reset(seed=1)
        for duration_ns in (7, 10**10, 3):
            clock.advance_ns(duration_ns)
            recorder.step(np.zeros(6))
    assert [step.timestamp_s for step in steps_of(recorder.path)] == [0.0, 0.05, 0.1]


def test_steps_are_numbered_and_the_end_has_the_last_observation(run):
    assert [(s.episode_index, s.step_index) for s in steps_of(run)] == [(e, s) for e in range(2) for s in range(4)]
    rows, (first, second) = list(read_run(run).transitions()), endings_of(run)
    np.testing.assert_array_equal(first.observation["joints_position"], rows[3]["observation"]["joints_position"])
    assert (first.length, first.ended, first.end_reason, second.seed) == (4, True, "time_limit", 1)


SOURCES = ["requested"] * 2 + ["applied"] * 2 + ["requested"] * 2


@pytest.fixture(scope="module")
def run_with_gaps(tmp_path_factory):
    """Record an episode of six steps, the third and the fourth without a valid action."""
    cart = changed_contract(embodied_env.load_contract("cart_goal"), {"episode.horizon_steps": 6})
    actions = [np.ones(2), np.ones(2), "what?", [1.0, np.nan], np.ones(2), np.ones(2)]
    return recorded(tmp_path_factory.mktemp("runs"), cart, episodes=1, actions=actions)


def test_action_without_a_valid_request_is_what_was_applied(run_with_gaps):
    steps, rows = steps_of(run_with_gaps), list(read_run(run_with_gaps).transitions())
    assert [step.action_source for step in steps] == SOURCES
    assert np.all(steps[2].action[""])  # the cart was braking
    for step, row in zip(steps[2:4], rows[2:4], strict=True):
        np.testing.assert_array_equal(step.action[""], np.asarray(row["info"]["action"]["applied"], np.float32))


def test_action_that_was_not_executed_is_marked(tmp_path, capsys):
    path = recorded(tmp_path, episodes=1, faults=[ScriptedFault(kind="nan", step=1, sensor="joints")])
    assert [step.action_source for step in steps_of(path)][:2] == ["requested", "refused"]
    assert main(["export", str(path), "--format", "jsonl", "-o", str(tmp_path / "out")]) == 0
    assert "not executed: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", FORMATS)
def test_no_action_of_an_export_is_nan(run_with_gaps, tmp_path, kind):
    needs(*NEEDS[kind])
    account = export_run(run_with_gaps, tmp_path / "arm-v0", format=kind)
    assert (account["gaps"], account["action_sources"]) == (2, {"requested": 4, "applied": 2})
    actions, sources = actions_of(tmp_path / "arm-v0", kind)
    assert np.isfinite(np.array(actions, float)).all()
    assert list(sources) == SOURCES


def test_dry_run_is_exported_on_request_only_and_marked(run, tmp_path, capsys):
    dry = shutil.copytree(run, tmp_path / "dry")
    manifest = json.loads((dry / "manifest.json").read_text())
    (dry / "manifest.json").write_text(json.dumps({**manifest, "capabilities": {"actuates": False}}))
    with pytest.raises(RecordError, match=r"is a dry run: .*--allow-dry-run"):
        export_run(dry, tmp_path / "out", format="jsonl")
    command = ["export", str(dry), "--format", "jsonl", "-o", str(tmp_path / "out"), "--allow-dry-run"]
    assert main(command) == 0
    assert "(dry run)" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "metadata.json").read_text())["world"] == "dry run"
    assert set(actions_of(tmp_path / "out", "jsonl")[1]) == {"dry run"}


def actions_of(out, kind):
    if kind == "jsonl":
        lines = [json.loads(line) for line in (out / "transitions.jsonl").read_text().splitlines()]
        return [line["action"] for line in lines], [line["action_source"] for line in lines]
    if kind == "minari":
        import minari

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MINARI_DATASETS_PATH", str(out.parent))
            (episode,) = minari.load_dataset(out.name)
        return episode.actions, episode.infos["action_source"][1:]
    import pyarrow.parquet as pq

    file = "transitions.parquet" if kind == "parquet" else "data/chunk-000/file-000.parquet"
    table = pq.read_table(out / file).to_pylist()
    source = "action_source" if kind == "parquet" else "source_of_action"
    return [row["action"] for row in table], [row[source] for row in table]


def test_gaps_cut_the_episode_on_request(run_with_gaps):
    source = open_episodes(read_run(run_with_gaps), split_at_gaps=True)
    *first, first_end, second, _, second_end = source
    rows = list(read_run(run_with_gaps).rows())
    assert [(item.episode_index, item.step_index) for item in (*first, second)] == [(0, 0), (0, 1), (1, 0)]
    assert [(end.seed, end.ended, end.end_reason) for end in (first_end, second_end)] == [
        (0, False, ""),
        (None, True, "time_limit"),
    ]
    for found, row in ((first_end, rows[2]), (second, rows[4]), (second_end, rows[6])):
        np.testing.assert_array_equal(found.observation["odom_position"], row["observation"]["odom_position"])
    assert (source.gaps, second.timestamp_s) == (2, 0.0)


def test_gap_of_a_wrapped_run_can_only_be_cut(tmp_path):
    class HalfSpeed(gymnasium.ActionWrapper):
        def action(self, action):
            return action if isinstance(action, embodied_env.NoAction) else action / 2

    actions = [embodied_env.NoAction("late"), *[np.ones(6)] * 3]
    path = recorded(tmp_path, episodes=1, wrap=HalfSpeed, actions=actions)
    with pytest.raises(RecordError, match=r"row 1: no action, .*--split-at-gaps"):
        steps_of(path)
    assert len(steps_of(path, split_at_gaps=True)) == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_evaluator_values_are_in_no_file_by_default(run, tmp_path, kind):
    needs(*NEEDS[kind])
    export_run(run, tmp_path / "out", format=kind)
    assert not [
        file for file in (tmp_path / "out").rglob("*") if file.is_file() and b"true_distance" in file.read_bytes()
    ]


def test_interrupted_episode_is_unfinished(tmp_path):
    with RecordTransitions(EmbodiedEnv(SHORT, backend="fake", clock="virtual"), tmp_path / "runs") as env:
        env.reset(seed=0)
        env.step(np.zeros(6))
        env.reset(seed=1)
    (ending,) = endings_of(env.path)
    assert (ending.length, ending.ended, ending.end_reason) == (1, False, "")
    account = export_run(env.path, tmp_path / "out", format="jsonl")
    assert (account["episodes"], account["unfinished"], account["left_out"]["resets"]) == (1, 1, 1)


def test_export_has_the_agents_observation_and_action_of_wrapped_runs(tmp_path):
    path = recorded(
        tmp_path,
        wrap=lambda env: gymnasium.wrappers.RescaleAction(
            gymnasium.wrappers.FlattenObservation(env), np.float32(-2), np.float32(2)
        ),
    )
    step, row = steps_of(path)[0], next(read_run(path).transitions())
    assert {key: array.shape for key, array in step.observation.items()} == {"": (19,)}
    np.testing.assert_array_equal(step.action[""], row["action"])
    np.testing.assert_array_equal(step.action_applied[""], row["inner"]["report"]["applied"])


# ------------------------------------------------------------------------------------------------------------ round trips


def test_json_lines_are_plain_transitions(run, tmp_path):
    account = export_run(run, tmp_path / "out", format="jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out" / "transitions.jsonl").read_text().splitlines()]
    rows = list(read_run(run).transitions())
    assert [line["next_observation"] for line in lines] == [row["observation"] for row in rows]
    assert [line["action"] for line in lines] == [row["action"] for row in rows]
    assert [line["action_applied"] for line in lines] == [row["info"]["action"]["applied"] for row in rows]
    assert lines[1]["observation"] == rows[0]["observation"]
    assert lines[-1]["end_reason"] == "time_limit"
    assert json.loads((tmp_path / "out" / "metadata.json").read_text()).items() >= account.items()


def images_of(out, kind):
    """Return the camera image and the depth image of the first step."""
    if kind == "jsonl":
        seen = json.loads((out / "transitions.jsonl").read_text().splitlines()[0])["observation"]
        return (out / seen["camera_image"]["file"]).read_bytes(), np.load(out / seen["depth_image"]["file"])
    if kind == "minari":
        import minari

        seen = minari.load_dataset(out.name)[0].observations
        return seen["camera_image"][0], seen["depth_image"][0]
    import pyarrow.parquet as pq

    file = "transitions.parquet" if kind == "parquet" else "data/chunk-000/file-000.parquet"
    (row, *_) = pq.read_table(out / file).to_pylist()
    camera = row.get("observation.camera_image") or row["observation.images.camera_image"]["bytes"]
    return camera, row["observation.depth_image"]


@pytest.mark.parametrize("kind", FORMATS)
def test_images_and_depth_are_exported_bit_for_bit(seen_run, tmp_path, monkeypatch, kind):
    needs(*NEEDS[kind], "PIL")
    from PIL import Image

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    export_run(seen_run, tmp_path / "door-v3", format=kind)
    camera, depth = images_of(tmp_path / "door-v3", kind)
    seen = steps_of(seen_run)[0].observation
    image = Image.open(io.BytesIO(camera)) if isinstance(camera, bytes) else camera
    np.testing.assert_array_equal(np.asarray(image), seen["camera_image"])
    np.testing.assert_array_equal(np.float32(depth).reshape(seen["depth_image"].shape), seen["depth_image"])


def test_parquet_reads_back_bit_for_bit(run, tmp_path):
    needs("pyarrow")
    import pyarrow.parquet as pq

    export_run(run, tmp_path / "out", format="parquet", evaluator=True)
    table, steps = pq.read_table(tmp_path / "out" / "transitions.parquet"), steps_of(run, evaluator=True)
    for name, value_of in {
        "observation.joints_position": lambda s: s.observation["joints_position"],
        "action": lambda s: s.action[""],
        "action_applied": lambda s: s.action_applied[""],
        "evaluator.true_distance.range": lambda s: s.evaluator["true_distance.range"],
    }.items():
        np.testing.assert_array_equal(np.stack(table[name].to_numpy()), np.stack([value_of(step) for step in steps]))
    assert table["reward"].to_pylist() == [step.reward for step in steps]
    assert table["truncated"].to_pylist() == [False, False, False, True] * 2
    assert table["episode_index"].to_pylist() == [0] * 4 + [1] * 4
    episodes = pq.read_table(tmp_path / "out" / "episodes.parquet").to_pylist()
    assert [episode["length"] for episode in episodes] == [4, 4]
    np.testing.assert_array_equal(
        episodes[1]["final_observation.tcp_position"], endings_of(run)[1].observation["tcp_position"]
    )


def test_seed_beyond_64_bits_is_refused_by_parquet_and_kept_in_json(tmp_path):
    needs("pyarrow")
    env = embodied_env.make(SHORT, backend="fake", clock="virtual", record=tmp_path)
    env.reset(seed=2**64)
    env.step(np.zeros(6))
    env.close()
    with pytest.raises(RecordError, match=r"column of episodes\.parquet: .*; choose another format"):
        export_run(env.path, tmp_path / "out", format="parquet")
    assert export_run(env.path, tmp_path / "out", format="jsonl")["episodes"] == 1


def test_parquet_is_written_in_groups(tmp_path, monkeypatch):
    needs("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    from embodied_env.extensions.export import parquet_files as parquet

    monkeypatch.setattr(parquet, "_MAX_GROUP_ROWS", 3)
    file = parquet.TableFile(tmp_path / "t.parquet", pa.schema([("n", pa.int64())]), ExitStack())
    for n in range(7):
        file.add({"n": n})
    file.close()
    assert pq.ParquetFile(tmp_path / "t.parquet").metadata.num_row_groups == 3
    assert pq.read_table(tmp_path / "t.parquet")["n"].to_pylist() == list(range(7))


def test_minari_reads_its_dataset_by_name(run, tmp_path, monkeypatch):
    needs(*NEEDS["minari"])
    import minari

    monkeypatch.chdir(tmp_path)
    export_run(run, Path("arm_reach-test-v0"), format="minari", evaluator=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("arm_reach-test-v0")
    steps, endings = steps_of(run), endings_of(run)
    assert (dataset.total_episodes, dataset.total_steps) == (2, 8)
    assert dataset.observation_space == ARM.observation_space
    assert dataset.action_space == ARM.action_space
    episode = list(dataset.iterate_episodes())[1]
    np.testing.assert_array_equal(episode.actions, [step.action[""] for step in steps[4:]])
    np.testing.assert_array_equal(
        episode.observations["joints_position"],
        [step.observation["joints_position"] for step in steps[4:]] + [endings[1].observation["joints_position"]],
    )
    np.testing.assert_array_equal(episode.infos["action_applied"][1:], [step.action_applied[""] for step in steps[4:]])
    assert np.isnan(episode.infos["action_applied"][0]).all()
    assert episode.rewards.tolist() == [step.reward for step in steps[4:]]
    assert episode.truncations.tolist() == [False, False, False, True]


@pytest.mark.parametrize("contract", [ARM, SHORT], ids=["shipped", "own"])
def test_minari_recovers_the_environment(tmp_path, monkeypatch, contract):
    """The user passes a contract of their own, since a dataset contains nothing that a contract executes."""
    needs(*NEEDS["minari"], "mujoco")
    import minari

    run = tmp_path / "runs"
    with RecordTransitions(EmbodiedEnv(contract, backend="fake", clock="virtual"), run) as env:
        env.reset(seed=1)
        env.step(np.zeros(6))
    export_run(env.path, tmp_path / "arm-v0", format="minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("arm-v0")
    assert dataset.env_spec.id == "embodied_env/ArmReach-v0"
    if contract is SHORT:
        with pytest.raises(UsageError, match="missing contract for the backend 'mujoco'"):
            dataset.recover_environment()
    with dataset.recover_environment(**({} if contract is ARM else {"contract": contract})) as recovered:
        assert recovered.unwrapped.contract.fingerprint == contract.fingerprint
        assert recovered.observation_space == dataset.observation_space
        assert recovered.reset(seed=1)[0].keys() == dataset[0].observations.keys()


def test_lerobot_has_the_documented_layout(run, tmp_path):
    """Read version 3.0 like ``lerobot.datasets``, from info, tasks and episodes to the frames that these locate."""
    needs("pyarrow")
    import pyarrow.parquet as pq

    out = tmp_path / "out"
    export_run(run, out, format="lerobot", evaluator=True)
    info = json.loads((out / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"], info["total_frames"]) == ("v3.0", 20, 2, 8)
    tasks = pq.read_table(out / "meta" / "tasks.parquet")
    assert tasks["task_index"].to_pylist() == [0]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    episodes = pq.read_table(out / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()
    steps = steps_of(run, evaluator=True)
    for episode in episodes:
        place = {"chunk_index": episode["data/chunk_index"], "file_index": episode["data/file_index"]}
        table = pq.read_table(out / info["data_path"].format(**place))
        assert set(table.column_names) == set(info["features"])
        part = slice(episode["dataset_from_index"], episode["dataset_to_index"])
        frames = [frame for frame in table.to_pylist() if frame["episode_index"] == episode["episode_index"]]
        assert [frame["index"] for frame in frames] == list(range(part.start, part.stop))
        assert [frame["timestamp"] for frame in frames] == [float(np.float32(k * 0.05)) for k in range(4)]
        np.testing.assert_array_equal(
            [f["action"] for f in frames], np.asarray([s.action[""] for s in steps[part]], np.float32)
        )
        np.testing.assert_array_equal(
            [f["applied_action"] for f in frames], np.asarray([s.action_applied[""] for s in steps[part]], np.float32)
        )
        assert [f["next.done"] for f in frames] == [False, False, False, True]
        assert [f["evaluator.true_distance.range"] for f in frames] == [
            s.evaluator["true_distance.range"][0] for s in steps[part]
        ]
    assert info["features"]["action"]["names"] == ["j1", "j2", "j3", "j4", "j5", "j6"]
    for column, name, key in (
        ("observation.state", "j2.pos", "joints_position"),
        ("observation.state", "j2.vel", "joints_velocity"),
        ("observation.environment_state", "tcp_position.y", "tcp_position"),
    ):
        place = info["features"][column]["names"].index(name)
        assert frames[0][column][place] == np.float32(steps[4].observation[key][1])
    units = json.loads((out / "meta" / "embodied_env.json").read_text())["units"]
    assert units["observation.environment_state"] == {"target_position": "m", "tcp_position": "m"}
    stats = json.loads((out / "meta" / "stats.json").read_text())
    np.testing.assert_allclose(stats["action"]["mean"], np.mean([s.action[""] for s in steps], axis=0), atol=1e-7)
    low, high = np.quantile(np.asarray([s.action[""] for s in steps], np.float32), (0.01, 0.99), axis=0)
    np.testing.assert_allclose([stats["action"]["q01"], stats["action"]["q99"]], [low, high], atol=1e-7)
    assert episodes[0]["stats/action/count"] == [4]
    assert len(episodes[0]["stats/action/q50"]) == 6
    assert not [name for name in info["features"] if "/" in name]


def test_lerobot_keeps_depth_as_metres_beside_the_images(seen_run, tmp_path):
    needs("pyarrow", "PIL")
    import pyarrow.parquet as pq

    export_run(seen_run, tmp_path / "out", format="lerobot")
    features = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["features"]
    assert features["observation.depth_image"] == {
        "dtype": "float32",
        "shape": [64, 64, 1],
        "names": ["height", "width", "channels"],
    }
    stats = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())
    assert np.shape(stats["observation.images.camera_image"]["mean"]) == (3, 1, 1)
    assert "observation.depth_image" not in stats
    assert pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet")["task"].to_pylist() == ["open the door"]


def columns_of(contract, environment=None):
    action = leaves_of_space(contract.action_space)
    leaves: dict = {"observation": leaves_of_space(contract.observation_space), "action": action, "applied": action}
    return Columns(EpisodeReader(run=None, contract=contract, evaluator={}, has_wrappers=False, **leaves), environment)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["j1.pos", "j1.vel"]),
        ({"sensors.joints.fields.velocity": ABSENT}, ["j1"]),
        ({"sensors.others": MORE_JOINTS}, ["joints_position.j1", "joints_velocity.j1", "others_position.j1"]),
    ],
)
def test_lerobot_names_joints_with_what_tells_them_apart(changes, expected):
    """A name is that of the joint, with its quantity if several are observed, or the key if two sensors measure it."""
    columns = columns_of(changed_contract(ARM, changes))
    assert [name for name in columns.features["observation.state"]["names"] if "j1" in name] == expected
    assert columns.features["action"]["names"] == ["j1", "j2", "j3", "j4", "j5", "j6"]


def test_lerobot_action_has_the_order_of_its_names_for_any_order_of_the_actuators():
    left_first = two_actuators()
    for contract in (left_first, replace(left_first, actuators=dict(reversed([*left_first.actuators.items()])))):
        columns = columns_of(contract)
        observation = {key: np.zeros(box.shape) for key, box in contract.observation_space.spaces.items()}
        action = {"left": np.array([1.0]), "right": np.array([2.0])}
        found = columns.read(types.SimpleNamespace(observation=observation, action=action, action_applied=action))
        for column in ("action", "applied_action"):
            assert dict(zip(columns.features[column]["names"], found[column], strict=True)) == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("contract", "chosen", "state", "environment"),
    [
        (
            "arm_reach",
            None,
            ["joints_position", "joints_valid", "joints_velocity"],
            ["target_position", "tcp_position"],
        ),
        (
            "door_open",
            None,
            ["joints_position", "joints_valid", "joints_velocity", "wrench_force", "wrench_torque"],
            ["handle_orientation", "handle_position", "handle_valid"],
        ),
        ("cart_goal", None, ["imu_", "odom_"], ["goal_", "scan_"]),
        (
            "arm_reach",
            ["target_position"],
            ["joints_position", "joints_valid", "joints_velocity", "tcp_position"],
            ["target_position"],
        ),
    ],
)
def test_lerobot_environment_state_is_what_does_not_measure_the_robot(contract, chosen, state, environment):
    units = columns_of(embodied_env.load_contract(contract), chosen).units
    for column, keys in (("observation.state", state), ("observation.environment_state", environment)):
        assert all(any(key.startswith(start) for start in keys) for key in units[column])
        assert all(any(key.startswith(start) for key in units[column]) for start in keys)


def test_lerobot_environment_state_has_vectors_of_the_observation(run, tmp_path):
    needs("pyarrow")
    with pytest.raises(
        UsageError, match=r"cannot export 'goal' as observation.environment_state \(expected vectors of"
    ):
        export_run(run, tmp_path / "out", format="lerobot", environment_state=["goal"])
    with pytest.raises(UsageError, match="environment_state is not in the format 'jsonl'"):
        export_run(run, tmp_path / "out", format="jsonl", environment_state=["goal"])
    assert not (tmp_path / "out").exists()


def test_lerobot_warns_of_a_dataset_that_act_does_not_train_on(run, tmp_path, caplog):
    needs("pyarrow")
    export_run(run, tmp_path / "out", format="lerobot", environment_state=[])
    assert "no image and no observation.environment_state" in caplog.text


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_lerobot_images_are_rgb(encoding):
    channels = {"r": 10, "g": 20, "b": 30, "a": 40}
    order = "m" if encoding == "mono8" else encoding.removesuffix("8")
    pixels = np.full((96, 96, len(order)), [channels.get(channel, 50) for channel in order], np.uint8)
    path = "sensors.camera.fields.image.shape"
    columns = columns_of(changed_contract(DOOR, {"sensors.camera.encoding": encoding, path: [96, 96, len(order)]}))
    assert columns.features["observation.images.camera_image"]["shape"] == [96, 96, 3]
    seen, action = DOOR.observation_space.sample() | {"camera_image": pixels}, {"": np.zeros(6)}
    step = types.SimpleNamespace(observation=seen, action=action, action_applied=action)
    image = columns.read(step)["observation.images.camera_image"]
    assert image.shape == (96, 96, 3)
    assert image[5, 5].tolist() == ([50] * 3 if encoding == "mono8" else [10, 20, 30])


def test_lerobot_continues_in_the_next_file(run, tmp_path, monkeypatch):
    needs("pyarrow")
    from embodied_env.extensions.export import lerobot_dataset as lerobot

    monkeypatch.setattr(lerobot, "_MAX_FILE_BYTES", 1)
    (tmp_path / "out").mkdir()
    source = open_episodes(read_run(run))
    writer = lerobot.LerobotDataset(tmp_path / "out", source, ExitStack())
    for item in source:
        writer.step(item) if isinstance(item, ExportedStep) else writer.end(item)
    writer.close({})
    assert sorted(file.name for file in (tmp_path / "out" / "data").rglob("*.parquet")) == [
        "file-000.parquet",
        "file-001.parquet",
    ]


def test_lerobot_rejects_evaluator_images(seen_run, tmp_path):
    needs("pyarrow")
    source = open_episodes(read_run(seen_run))
    from embodied_env.extensions.export.exported_episodes import ArrayField
    from embodied_env.extensions.export.lerobot_dataset import LerobotDataset

    source.evaluator = {"above.image": ArrayField(dtype="uint8", shape=(4, 4, 3))}
    with pytest.raises(UsageError, match=r"cannot export the evaluator's images above\.image"):
        LerobotDataset(tmp_path, source, ExitStack())


@pytest.mark.parametrize("is_image", [False, True])
def test_statistics_equal_those_of_all_values(is_image):
    values = np.random.default_rng(0).integers(0, 255, (20, 4, 5, 3)).astype(np.uint8)
    first, second = ColumnStatistics((4, 5, 3), is_image=is_image), ColumnStatistics((4, 5, 3), is_image=is_image)
    for index, value in enumerate(values):
        (first if index < 7 else second).add(value)
    first.merge(second)
    found = first.as_json()
    whole = values.reshape(-1, 3) / 255.0 if is_image else values
    for name in ("mean", "std", "min", "max"):
        expected = getattr(whole, name)(axis=0)
        np.testing.assert_allclose(found[name], expected.reshape(3, 1, 1) if is_image else expected, atol=1e-12)
    assert found["count"] == [20]


def test_statistics_never_hide_nan():
    column = ColumnStatistics((2,), has_quantiles=True)
    for value in ([1.0, 1.0], [3.0, np.nan]):
        column.add(np.array(value))
    assert column.as_json().items() >= {"min": [1.0, None], "mean": [2.0, None], "q99": [2.98, None]}.items()
    assert not column.is_known


# ----------------------------------------------------------------------------------------------------------- errors


def test_existing_output_is_never_overwritten(run, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"the output folder exists: .*out"):
        export_run(run, tmp_path / "out", format="jsonl")
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(UsageError, match=r"the output folder exists: .*other\.partial"):
        export_run(run, tmp_path / "other", format="jsonl")


def test_unclean_run_needs_allow_unclean_and_is_marked(run, tmp_path):
    cut = shutil.copytree(run, tmp_path / "cut")
    log = with_a_chunk_per_row(cut)
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])
    with pytest.raises(RecordError, match=r"is not clean: .*--allow-unclean"):
        export_run(cut, tmp_path / "out", format="jsonl")
    export_run(cut, tmp_path / "out", format="jsonl", allow_unclean=True)
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert not metadata["clean"]
    assert "its writer was stopped" in metadata["problem"]
    assert metadata["unfinished"] == 1


def test_failed_export_leaves_no_files(run, tmp_path):
    def fail(_steps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_run(run, tmp_path / "out", format="jsonl", progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_run_without_steps_cannot_be_exported(tmp_path):
    with RecordTransitions(EmbodiedEnv(SHORT, backend="fake"), tmp_path / "runs") as env:
        env.reset(seed=0)
    with pytest.raises(RecordError, match="no steps to export"):
        export_run(env.path, tmp_path / "out", format="jsonl")


def test_missing_library_error_names_the_extra(run, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"] or ["pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(run), "--format", "parquet", "-o", str(tmp_path / "out")]) == 1
    assert "embodied_env[parquet]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["RUN", "--format", "csv"], "expected one of: jsonl, parquet, minari, lerobot"),
        (["/none", "--format", "jsonl"], "no such run directory: '/none'"),
    ],
)
def test_usage_errors_of_the_export_verb_are_reported(run, tmp_path, capsys, arguments, problem):
    words = [str(run) if word == "RUN" else word for word in arguments]
    assert main(["export", *words, "-o", str(tmp_path / "out")]) == 2
    assert problem in capsys.readouterr().err


def test_lerobot_has_a_task_for_each_prompt(tmp_path):
    needs("pyarrow", "PIL")
    pq = pytest.importorskip("pyarrow.parquet")
    with embodied_env.make(SHORT, backend="fake", clock="virtual", record=tmp_path) as env:
        for prompt in ("wave", "rest", "wave"):
            env.reset(options={"instruction": prompt})
            env.step(np.zeros(6))
    export_run(env.path, tmp_path / "out", format="lerobot")
    tasks = pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0, 1], "task": ["wave", "rest"]}
    frames = pq.read_table(tmp_path / "out" / "data" / "chunk-000" / "file-000.parquet")
    assert frames["task_index"].to_pylist() == [0, 1, 0]


@pytest.mark.parametrize(("weight", "task"), [(1.0, "wave"), (0.75, "wave"), (0.25, "rest")])
def test_lerobot_has_the_task_with_which_most_of_an_action_was_computed(tmp_path, weight, task):
    needs("pyarrow", "PIL")
    pq = pytest.importorskip("pyarrow.parquet")
    with embodied_env.make(SHORT, backend="fake", clock="virtual", record=tmp_path) as env:
        env.reset(options={"instruction": "wave"})
        env.unwrapped.instruct("rest")
        account = {"earlier_prompt": {"instruction": "wave", "weight": weight}}
        env.unwrapped.annotate("chunk", {"mode": "crossfade", **account})
        env.step(np.zeros(6))
    export_run(env.path, tmp_path / "out", format="lerobot")
    tasks = pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0], "task": [task]}
