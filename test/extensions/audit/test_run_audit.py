import json
import shutil

import gymnasium
import numpy as np
import pytest
from run_files import change_manifest, record, relink, with_a_chunk_per_row
from shipped_contracts import with_hidden_velocities

from embodied_env.extensions.audit import audit_run
from embodied_env.extensions.audit.row_history_rules import STEPS, LeakDetector
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.summary import Summary


def moving(folder, steps, *, wrap=lambda env: env, resets=1):
    """Record episodes in which the arm moves at every step, and return the run directory."""
    actions = [[0.1 * np.sin(1 + step + np.arange(6)) for step in range(steps)]] * resets
    return record(folder, actions, with_hidden_velocities(), wrap=wrap)


def truth(env):
    """Return the evaluator's reading at the last step or reset."""
    last, start = env.unwrapped.last_transition, env.unwrapped.last_reset
    snapshot = start if last is None or last.snapshot.now_ns < start.now_ns else last.snapshot
    return snapshot.samples["truth"].values["velocity"][:1].copy()


class Leaking(gymnasium.ObservationWrapper):
    """Copies the evaluator's reading into the observation."""

    def __init__(self, env):
        super().__init__(env)
        hint = gymnasium.spaces.Box(-10.0, 10.0, (1,))
        self.observation_space = gymnasium.spaces.Dict({**env.observation_space.spaces, "hint": hint})

    def observation(self, observation):
        return {**observation, "hint": truth(self)}


LEAK = "equals evaluator truth.velocity[0] over {} varying steps: the agent sees an evaluator-only reading"


def test_leak_of_an_evaluator_reading_by_a_wrapper_is_reported(tmp_path):
    report = audit_run(moving(tmp_path, 25, wrap=Leaking))
    assert not report.sound
    assert report.problems[0] == f"observation.hint[0] {LEAK.format(25)}"


def test_leak_is_reported_among_many_row_problems(tmp_path):
    report = audit_run(moving(tmp_path, 105, wrap=Leaking))
    assert "the agent sees" in report.problems[0]
    assert len(report.problems) == 101
    assert report.problems[-1] == "and 6 more problems"


def step(observation, evaluator):
    return {"schema": TRANSITION, "observation": observation, "inner": {"evaluator": evaluator}}


def reset(observation, evaluator):
    return {**step(observation, evaluator), "schema": RESET}


def leaks_in(rows):
    watch = LeakDetector()
    for row in rows:
        watch.add(row)
    return [violation.text for violation in watch.violations()]


def steps(pairs):
    """Return rows in which the agent has `a` and the evaluator `e`, for each pair (a, e)."""
    return [step({"field": [0.0, a]}, {"sensor": {"value": [e]}}) for a, e in pairs]


def start(a, e):
    return reset({"field": [0.0, a]}, {"sensor": {"value": [e]}})


def varying(count, first=0):
    return [(0.1 * k, 0.1 * k) for k in range(first, first + count)]


START, HALF, GAP = start(-1.0, -1.0), steps(varying(STEPS - 1)), steps([(-7.0, 3.0)])
IMAGE = {"sha256": "0" * 64, "dtype": "uint8", "shape": [4, 4, 3]}


LEAKS = {  # rows, and the number of varying steps of the one leak, or 0 for none
    "20 varying steps": ([START, *steps(varying(STEPS))], STEPS),
    "19 varying steps": ([START, *HALF], 0),
    "constant steps do not count": ([START, *steps(np.repeat(varying(STEPS - 1), 3, axis=0).tolist())], 0),
    "constant steps do not interrupt": ([START, *steps(np.repeat(varying(STEPS), 3, axis=0).tolist())], STEPS),
    "equal constants": ([START, *steps([(7.0, 7.0)] * 200)], 0),
    "an unequal step restarts the count": ([START, *HALF, *GAP, *HALF], 0),
    "short episodes": ([START, *steps(varying(STEPS // 4))] * 4, STEPS),
    "steps only of short episodes": ([start(5.0, -1.0), *steps(varying(5))] * 4, STEPS),
    "jumps at resets": (
        [row for k in range(2 * STEPS) for row in (start(0.1 * k, 0.1 * k), *steps([(0.1 * k, 0.1 * k)] * 3))], 0,
    ),
    "within an episode": ([START, *steps([(-9.0, 0.1 * k) for k in range(30)]), *steps(varying(37, 30))], 37),
    "the longest of several": (
        [START, *steps(varying(21)), *GAP, *steps(varying(50)), *GAP, *steps(varying(30))], 50,
    ),
    "rounded to float32": ([START, *steps([(float(np.float32(a)), e) for a, e in varying(STEPS)])], STEPS),
    "close readings": ([START, *steps([(a, np.nextafter(a, 9.0)) for a, _ in varying(59, 1)])], 0),
    "missing values": ([START, *steps([(None, None)] * 60)], 0),
    "a step without an inner record": ([START, *HALF, {**HALF[0], "inner": None}, *HALF], 0),
    "new fields": ([START, *HALF, *({**row, "observation": {**row["observation"], "new": 1.0}} for row in HALF)], 0),
    "images and large fields": (
        [step({"image": IMAGE, "large": [a] * 5000}, {"s": {"v": [a], "image": IMAGE}}) for a, _ in varying(30)], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEAKS)
def test_equal_readings_that_vary_are_a_leak(case):
    rows, count = LEAKS[case]
    text = f"observation.field[1] equals evaluator sensor.value[0] over {count} varying steps"
    assert leaks_in(rows) == ([f"{text}: the agent sees an evaluator-only reading"] if count else [])


def test_every_leaking_pair_is_reported():
    def row(k):
        return step(
            {"a": [0.1 * k, 5.0], "b": {"c": 0.3 * k}}, {"x": {"p": [[1.0, 0.1 * k]]}, "y": {"q": [0.1 * k, 0.3 * k]}}
        )

    assert [problem.partition(" over ")[0] for problem in leaks_in(map(row, range(1, 40)))] == [
        "observation.a[0] equals evaluator x.p[0][1]",
        "observation.a[0] equals evaluator y.q[0]",
        "observation.b.c equals evaluator y.q[1]",
    ]


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda x: x, "observation"),
        (lambda x: [x, "text", [1.0, 2.0]], "observation[0]"),
        (lambda x: [{"deep": [[x]]}], "observation[0].deep[0][0]"),
        (lambda x: {"": None, "big": 10**400, "same": x}, "observation.same"),
    ],
)
def test_numbers_are_found_in_any_structure(wrap, name):
    (problem,) = leaks_in(step(wrap(0.1 * k), {"s": {"v": [0.1 * k]}}) for k in range(STEPS))
    assert problem.startswith(f"{name} equals evaluator s.v[0] over 20 varying steps")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return moving(tmp_path_factory.mktemp("runs"), 4, resets=2)


@pytest.fixture
def path(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def the_problem(path):
    (problem,) = audit_run(path).problems
    return problem


def test_damaged_log_is_reported_and_its_earlier_rows_are_audited(path):
    log = with_a_chunk_per_row(path)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    report = audit_run(path)
    assert "its writer was stopped" in report.problems[0]
    assert 0 < report.transitions < 8


@pytest.mark.parametrize(
    ("contract", "problem"),
    [
        (None, "is "),
        ({}, "is "),
        ({"text": 5}, "is "),
        ({"text": "contract: nonsense/1", "fingerprint": "0"}, "cannot be read: "),
    ],
)
def test_manifest_without_a_readable_contract_is_reported(path, contract, problem):
    change_manifest(path, contract=contract)
    relink(path)
    assert the_problem(path).startswith(f"manifest.json: contract.text {problem}")


@pytest.mark.parametrize("statistic", ["mean", "min", "max", "std"])
def test_changed_return_in_the_summary_is_detected(path, statistic):
    file = path / "summary.json"
    summary = json.loads(file.read_text())
    summary["return"][statistic] = 0.5  # of no episode
    file.write_text(json.dumps(summary))
    assert the_problem(path).startswith(f"summary.json: return.{statistic} is ")


@pytest.mark.parametrize("count", ["successes", "clipped", "truncated", "steps"])
def test_wrong_summary_is_detected(tmp_path, monkeypatch, count):
    """The independent count of the audit reveals errors in the writer of the summary."""
    add = Summary.add

    def add_wrongly(self, row):
        self._counts[count] += 1
        return add(self, row)

    monkeypatch.setattr(Summary, "add", add_wrongly)
    assert set(audit_run(moving(tmp_path, 3)).counts) == {"summary.differs"}
