"""Benchmarks: their calculations, and that they run."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RECORD = Path(__file__).parents[2] / "benchmarks" / "record.py"
PACING = Path(__file__).parents[2] / "benchmarks" / "pacing.py"
STEP = Path(__file__).parents[2] / "benchmarks" / "step.py"
VECTOR = Path(__file__).parents[2] / "benchmarks" / "vector.py"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def pacing():
    spec = importlib.util.spec_from_file_location("benchmark_of_pacing", PACING)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def instants(pacing, *late_ms, period_ms=10):
    """Return steps at 100 Hz after the warm-up, each late by the given amount."""
    count = pacing.WARM_UP + len(late_ms)
    late = np.array([0] * pacing.WARM_UP + list(late_ms))
    return (np.arange(count) * period_ms + late) * 1_000_000


def test_timely_steps_have_no_error(pacing):
    found = pacing.figures(instants(pacing, *[0] * 10), 100)
    assert set(found.values()) == {0.0}


def test_late_step_affects_two_periods_and_misses_no_deadline(pacing):
    found = pacing.figures(instants(pacing, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0), 100)
    assert (found["p50_us"], found["missed"], found["rate_error_percent"]) == (0.0, 0.0, 0.0)
    assert found["p99_us"] == pytest.approx(4000.0)


def test_skipped_deadlines_are_missed(pacing):
    assert pacing.figures(instants(pacing, 0, 0, 30, 30, 30), 100)["missed"] == 3.0


def test_wrong_rate_shows_in_mean(pacing):
    found = pacing.figures(instants(pacing, *[0] * 100, period_ms=11), 100)
    assert found["rate_error_percent"] == pytest.approx(100 / 11)


@pytest.mark.long
def test_pacing_benchmark_runs():
    arguments = ["--rounds", "1", "--seconds", "0.2", "--rates", "100", "--json"]
    done = subprocess.run([sys.executable, str(PACING), *arguments], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert {"plain loop", "plain loop that works", "embodied_env, recording"} <= {row["who"] for row in rows}


@pytest.mark.long
def test_recording_benchmark_runs():
    arguments = ["--rounds", "1", "--steps", "5", "--json"]
    done = subprocess.run([sys.executable, str(RECORD), *arguments], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 8
    assert all(row["ratio"] == 1.0 for row in rows if not row["record"])


@pytest.mark.long
def test_vector_benchmark_runs():
    arguments = ["--rounds", "1", "--steps", "5", "--num-envs", "1", "2", "--json"]
    done = subprocess.run([sys.executable, str(VECTOR), *arguments], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 8
    assert all(row["ratio"] == 1.0 for row in rows if row["who"] == "EmbodiedVectorEnv")


def benchmark(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_of_{name}", PACING.parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses resolve their annotations
    spec.loader.exec_module(module)
    return module


def table_of(script: str, folder: Path, *arguments: str) -> list[dict]:
    """Return the rows of the JSON file written by a benchmark."""
    file = folder / "table.json"
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--json", str(file)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(file.read_text())["rows"]


@pytest.fixture(scope="module")
def clamps():
    return benchmark("clamps")


WILD = np.array([[0.9, -0.9], [-0.9, 0.9], [0.01, -0.01]])


def test_gate_benchmark_checks_clamps(tmp_path):
    rows = table_of("gate.py", tmp_path, "--rounds", "1", "--steps", "3")
    assert {"lerobot's clamp", "inspect-robots' approvers"} < {row["who"] for row in rows}
    assert rows[0]["ratio"] == 1.0
    assert all(row["code"] for row in rows)


def test_both_clamps_limit_as_documented(clamps):
    for check in clamps.checks(["a", "b"]):
        assert len(list(clamps.timed(check, WILD))) == len(WILD)


def test_differing_package_result_ends_benchmark(clamps):
    check = clamps.checks(["a", "b"])[0]
    other = dataclasses.replace(check, make=lambda: lambda _: {"a": 0.0, "b": 0.01}, whose="lerobot 9.9")
    with pytest.raises(SystemExit, match=r"lerobot 9.9 leaves \[0. +0.01\], what is written out \[ 0.05 -0.05\]"):
        list(clamps.timed(other, WILD))


def test_ineffective_clamp_ends_benchmark(clamps):
    check = clamps.checks(["a", "b"])[1]
    open_to_all = dataclasses.replace(check, make=None, write_out=lambda: np.copy)
    with pytest.raises(SystemExit, match=r"let .* through after"):
        list(clamps.timed(open_to_all, WILD))


def test_in_process_simulation_matches_bare_loop(tmp_path):
    rows = table_of("inprocess.py", tmp_path, "--rounds", "1", "--steps", "3")  # otherwise it exits with another status
    assert {row["who"] for row in rows} == {"bare mj_step loop", "plain Gymnasium", "embodied_env"}


def test_import_benchmark_finds_no_optional_modules(tmp_path):
    rows = table_of("import.py", tmp_path, "--rounds", "1")  # otherwise it exits with another status
    assert [row["package"] for row in rows] == ["gymnasium", "numpy", "embodied_env"]


@pytest.fixture(scope="module")
def step_benchmark():
    pytest.importorskip("rclpy", reason="needs rclpy")
    return benchmark("step")


def test_ratio_is_median_of_per_round_ratios(step_benchmark):
    found = [{"a": {"p50_us": a}, "b": {"p50_us": b}} for a, b in ((2.0, 1.0), (30.0, 10.0), (4.0, 1.0))]
    assert step_benchmark.ratio(found, "a", "b") == {"ratio": 3.0, "least": 2.0, "most": 4.0}


def test_cost_per_sensor_is_the_slope(step_benchmark):
    rounds = [
        {
            f"{who} + {n}": {"p50_us": 100.0 + 7 * n, "worked_us": 5.0 * n}
            for who in step_benchmark.WIDENED
            for n in (0, 4, 12)
        }
    ]
    found = step_benchmark.slopes(rounds, [0, 4, 12])
    assert found["transport, p50_us"]["ratio"] == pytest.approx(7.0)
    assert found["transport, worked_us"]["ratio"] == pytest.approx(5.0)


@pytest.mark.ros
@pytest.mark.long
def test_ros_step_benchmark_runs(tmp_path):
    """The benchmark itself compares the results of all variants."""
    result = tmp_path / "step.json"
    arguments = ["--rounds", "1", "--steps", "5", "--warm-up", "3", "--extra", "0", "2", "--json", str(result)]
    subprocess.run([sys.executable, str(STEP), *arguments], capture_output=True, text=True, check=True)
    found = json.loads(result.read_text())
    assert {"typed WaitSet", "spin_once", "background", "env, recorded"} <= {row["who"] for row in found["rows"]}
    assert len(found["targets"]) == 3
    assert "transport, worked_us" in found["one_more_sensor"]


@pytest.fixture(scope="module")
def images():
    return benchmark("images")


@pytest.fixture(scope="module")
def scale():
    return benchmark("scale")


def frames(images, profile, p95_us, lost=0):
    case = images.Case(size="640x480", client="ours", profile=profile)
    times = {"p50_us": 100.0, "p95_us": p95_us, "p99_us": p95_us}
    return case, [{**times, "lost": lost, "frames": 10, "equal": True}]


def test_images_are_compared_with_and_without_profile(images):
    bare, roomy = images.rows(dict([frames(images, "none", 1000.0), frames(images, "both", 150.0)]))
    assert bare["ratio"] == [1.0, 1.0, 1.0]
    assert roomy["ratio"] == [0.15, 0.15, 0.15]
    assert roomy["p95_to_p50"] == 1.5


@pytest.mark.parametrize(("p95_us", "lost", "reached"), [(160.0, 0, True), (161.0, 0, False), (100.0, 1, False)])
def test_image_target_requires_steady_times_and_no_loss(images, p95_us, lost, reached):
    table = images.rows(dict([frames(images, "both", p95_us, lost)]))
    assert list(images.targets(table).values()) == [reached]


@pytest.mark.long
@pytest.mark.ros
def test_image_benchmark_runs(tmp_path):
    out = tmp_path / "images.json"
    arguments = ["--rounds", "1", "--steps", "5", "--sizes", "84x84", "--clients", "raw", "ours", "--json", str(out)]
    subprocess.run([sys.executable, str(PACING.parent / "images.py"), *arguments], capture_output=True, check=True)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 4
    assert all(row["equal"] and row["lost"] == 0 for row in rows)


@pytest.mark.long
def test_policy_server_benchmark_runs(tmp_path):
    rows = table_of("policy_server.py", tmp_path, "--rounds", "1", "--requests", "5")  # it compares the answers
    assert [row["who"] for row in rows][:2] == ["bare client, bare server", "our client, our server"]
    assert rows[0]["ratio"] == 1.0


def test_marginal_cost_is_the_slope_of_a_line(scale):
    table = [{"what": "sensors", "size": size, "thread_us": 100.0 + 20.0 * size} for size in (1, 2, 4)]
    (found,) = scale.slopes(table).values()
    assert found == pytest.approx({"each_us": 20.0, "start_us": 100.0, "linear": 1.0})


def test_scale_benchmark_measures_a_family(scale):
    (sensors, *_) = scale.families(2, ros=False, tiny=True)
    table = scale.measure([sensors], 1)
    assert [(row["what"], row["size"]) for row in table] == [("sensors", 1), ("sensors", 2)]


@pytest.mark.long
def test_scale_benchmark_runs(scale):
    table = scale.measure(scale.families(2, ros=False, tiny=True), 1)
    assert [(row["what"], row["size"]) for row in table] == [
        ("sensors", 1), ("sensors", 2), ("joints", 6), ("joints", 12), ("environments", 1), ("environments", 2),
    ]  # fmt: skip
    held = {"resets": scale.over_resets(2)}
    assert {"sensors: <= 60 us for each", "resets: no thread and no file more"} <= set(
        scale.targets(scale.slopes(table), held)
    )


def test_memory_is_sampled_after_each_tenth_of_steps(scale, monkeypatch):
    looks = itertools.count()
    monkeypatch.setattr(scale, "holdings", lambda: {"threads": next(looks)})  # a real sample takes a tenth of a second
    held = scale.over_steps(20, "fake")
    assert list(held) == [f"{number} steps" for number in range(2, 21, 2)]
    assert scale.growth(held) == {"threads": 9}


def test_growing_memory_is_distinguished_from_flat(scale):
    def held(*resident_kb):
        return {
            str(number): {"threads": 1, "files": 3, "resident_kb": kb, "resident_kb_of_children": 0}
            for number, kb in enumerate(resident_kb)
        }

    found = scale.targets({}, {"flat": held(50_000, 52_048), "steep": held(50_000, 49_000, 52_049)})
    assert found["flat: memory is flat (2 MB)"]
    assert not found["steep: memory is flat (2 MB)"]


@pytest.mark.long  # longer than five minutes: pytest prints stacks meanwhile and continues
@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_memory_is_constant_over_a_million_steps(scale, backend):
    held = scale.apart(1_000_000, backend)
    print(json.dumps(held))
    assert all(scale.targets({}, {"steps": held}).values())


@pytest.fixture(scope="module")
def network_delay():
    return benchmark("network_delay")


def test_jerk_of_a_jump_and_of_a_steady_motion(network_delay):
    def jerks(stamps_ms, positions):
        values = np.repeat(np.array(positions)[:, None], 6, axis=1)
        published = [(int(ms) * 1_000_000, row) for ms, row in zip(stamps_ms, values, strict=True)]
        return network_delay.jerk_of_drives(published, 0, 1_000_000_000)

    jump = jerks([0, 100], [0.0, 0.02])
    assert jump.max() == pytest.approx(0.02 * 0.17 / network_delay.LAG_S**3, rel=0.02)
    coarse, fine = (jerks(range(0, 1000, ms), np.arange(1000 // ms) * 1e-3 * ms)[500:900].max() for ms in (50, 5))
    assert fine < coarse / 40


@pytest.mark.realtime
@pytest.mark.parametrize("mode", ["wait", "rtc"])
def test_network_delay_benchmark_measures_a_setting(network_delay, mode):
    names = {"rate_hz": 50, "mode": mode, "delay_ms": 20}
    settings = [network_delay.Setting(setpoint_hz=rate, **names) for rate in (None, 200)]
    rows = {each: network_delay.measure(each, 0.3, "fake", warm_up_s=0.1) for each in settings}
    for row in rows.values():
        if row["age_mean_ms"] is None:  # on a busy host
            assert row["without_percent"] == 100.0
        else:
            assert row["age_mean_ms"] > 0.8 * 20.0
            assert 0.0 <= row["without_percent"] < 100.0
    assert f"| 50 Hz | `{mode}` |" in network_delay.tables(rows)
    for panels in network_delay.PICTURES.values():
        drawn = network_delay.picture(rows, panels)
        assert drawn.count(f'class="{mode}"') == 1 + len(panels)
