import gc
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import embodied_env

FOLDER = Path(__file__).parents[2] / "benchmarks"
SPEC = importlib.util.spec_from_file_location("benchmarks", FOLDER / "__init__.py")
sys.modules["benchmarks"] = importlib.util.module_from_spec(SPEC)  # without the folder of the sources in sys.path

from benchmarks import __main__ as command  # noqa: E402
from benchmarks import harness, memory, network_delay, pacing, page, single_step, step_counts  # noqa: E402
from benchmarks.arm import arm_model, endless_arm, kept_actions  # noqa: E402
from benchmarks.targets import BENCHMARKS, Benchmark, Target  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def only_own_objects():
    """Exclude the objects of other tests from the garbage collection before each case, which takes a second with them."""
    gc.collect()
    gc.freeze()


def test_page_shows_recorded_results():
    """If it fails, run ``python -m benchmarks --page``."""
    assert page.PAGE.read_text() == page.fill_page(page.PAGE.read_text(), page.read_results())


def test_results_have_every_ratio_of_smoke_edition():
    results = page.read_results()
    for name, benchmark in BENCHMARKS.items():
        for target in benchmark.targets:
            assert not target.smoke_factor or target.measured(results[name]["samples"]) is not None


def test_every_case_runs_in_every_round():
    samples = harness.run_rounds({"a": lambda: 1.0, "b": lambda: {"p50": 2.0, "p99": 3.0}}, 2)
    assert samples == {"a": [1.0] * 2, "b, p50": [2.0] * 2, "b, p99": [3.0] * 2}


def test_ratios_are_of_figures_in_one_round():
    samples = {"a": [2.0, 30.0, 4.0], "b": [1.0, 10.0, 1.0], "c": [2.0, 2.0, 2.0]}
    assert harness.ratio("a", "b")(samples) == [2.0, 3.0, 4.0]
    assert harness.excess("a", "b", "c")(samples) == [0.5, 10.0, 1.5]
    assert harness.difference("a", "b")(samples) == [1.0, 20.0, 3.0]
    assert harness.idle_rate("b", "a", 2)(samples) == pytest.approx([1 / 3, 1 / 5, 1 / 7])


def test_estimate_is_median_with_interval():
    found = harness.estimate(np.arange(100.0).tolist())
    assert found.value == 49.5
    assert 30.0 < found.low < 45.0
    assert 55.0 < found.high < 70.0
    assert harness.estimate([2.0] * 3) == harness.Estimate(value=2.0, low=2.0, high=2.0)


@pytest.mark.parametrize(("found", "status"), [([1.4], 0), ([1.6, 1.4], 0), ([1.6, 1.7], 1)])
def test_smoke_edition_fails_after_two_regressions(monkeypatch, found, status):
    target = Target("", harness.figure("a"), at_most=1.0, smoke_factor=1.5)
    left = [{"a": [value]} for value in found]
    monkeypatch.setattr(Benchmark, "measure", lambda *_, **__: left.pop(0))
    monkeypatch.setitem(BENCHMARKS, "a", Benchmark("", [target]))
    monkeypatch.setattr(command, "read_results", lambda: {"a": {"samples": {"a": [1.0]}}})
    assert command.smoke("a") == status


def test_rate_that_falls_is_a_regression():
    target = Target("", harness.figure("a"), at_least=0.6, smoke_factor=1.5)
    recorded, found = (harness.estimate([value]) for value in (0.9, 0.59))
    assert target.is_regression(found, recorded)
    assert not target.is_regression(recorded, found)
    assert target.is_reached(found) is False


def test_result_of_one_benchmark_keeps_the_others(tmp_path):
    file = tmp_path / "results.json"
    page.write_result("imports", {"a": [1.23456]}, file)
    page.write_result("batched", {"b": [1.0]}, file)
    assert {name: each["samples"] for name, each in page.read_results(file).items()} == {
        "batched": {"b": [1.0]},
        "imports": {"a": [1.235]},
    }


def test_lateness_is_measured_from_deadlines():
    deadlines = pacing.PERIOD_NS * np.arange(pacing.WARM_UP + 100)
    found = pacing.figures(deadlines + 5_000, deadlines)
    assert found == pytest.approx({"mean": 5.0, "p50": 5.0, "p99": 5.0, "rate error, %": 0.0})


def test_step_in_process_computes_what_bare_loop_does():
    with embodied_env.make(endless_arm(), backend="mujoco") as env:
        single_step.cases_of("kept", kept_actions(3), env, arm_model())


def test_step_makes_few_python_calls():
    """The limit is that of the plain step with actions that the gate keeps, and fewer calls lower it."""
    assert step_counts.count_python_calls(step_counts.ACTIONS["kept"]) <= 78


def test_memory_is_sampled_after_equal_shares_of_the_steps(monkeypatch):
    monkeypatch.setattr(memory, "TENTHS", 2)  # each sample collects garbage, which takes a while among all tests
    held = memory.over_steps(20, "fake")
    assert list(held) == ["10 steps", "20 steps"]


def test_growing_memory_is_distinguished_from_flat():
    def held(*resident_kb):
        return {str(n): {"threads": 1, "resident_kb": kb} for n, kb in enumerate(resident_kb)}

    assert memory.grown(held(50_000, 52_048)) == {}
    assert memory.grown(held(50_000, 49_000, 52_049)) == {"resident_kb": 2049}


@pytest.mark.long
@pytest.mark.ros
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_measures_its_targets(name):
    """The benchmarks themselves compare the results of all cases."""
    assert BENCHMARKS[name].measure(smoke=True)


@pytest.mark.long  # longer than five minutes: pytest prints stacks meanwhile and continues
@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_memory_is_constant_over_a_million_steps(backend):
    held = memory.over_steps_apart(1_000_000, backend)
    print(json.dumps(held))
    assert memory.grown(held) == {}


@pytest.mark.realtime
@pytest.mark.parametrize("mode", ["wait", "rtc"])
def test_network_delay_benchmark_measures_a_setting(mode):
    ages_ms, without_percent = network_delay.measure(50, mode, 20, 0.3, "fake", warm_up_s=0.1)
    if ages_ms:
        assert np.mean(ages_ms) > 0.8 * 20.0
        assert 0.0 <= without_percent < 100.0
    else:  # on a busy host
        assert without_percent == 100.0
