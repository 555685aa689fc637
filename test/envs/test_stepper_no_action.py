"""`NoAction` and annotations are held, recorded, audited and replayed."""

import json
from typing import Any

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.core.latency_statistics import LatencyStatistics
from embodied_env.core.policy import NoAction
from embodied_env.errors import ContractError, ResetNeededError, UsageError

ARM = embodied_env.load_contract("arm_reach")
IMPATIENT = changed_contract(ARM, {"policy": {"max_missed": 3}})
NOW = NoAction("no answer\nin time")


def make(contract=IMPATIENT, **options):
    return embodied_env.make(contract, **{"backend": "fake", "clock": "virtual", **options})


@pytest.mark.needs("explain")
def test_the_robot_holds_with_an_explanation_and_moves_on_with_the_next_action():
    with make() as env:
        env.reset(seed=1)
        before = env.step(np.full(6, 0.5))[-1]["action"]["applied_si"]
        *_, terminated, truncated, held = env.step(NOW)
        assert not terminated
        assert not truncated
        assert held["safety"]["disposition"] == Severity.HOLD
        assert all(np.isfinite(list(held["action"]["applied_si"].values())))
        assert "the policy returned no action" in embodied_env.explain(held)
        for _ in range(20):
            after = env.step(np.full(6, 0.5))[-1]
        assert after["safety"]["disposition"] < Severity.HOLD
        assert after["action"]["applied_si"] != before


def test_too_many_in_a_row_truncate_and_an_action_in_between_does_not():
    with make() as env:
        env.reset(seed=1)
        for action in (NOW, NOW, np.zeros(6), NOW, NOW):
            *_, truncated, info = env.step(action)
            assert not truncated
        *_, terminated, truncated, info = env.step(NOW)
        assert (terminated, truncated) == (False, True)
        assert info["end_reason"] == "policy_lost:no answer in time"
        env.reset()  # the next episode starts from zero
        assert not env.step(NOW)[3]


def test_none_is_not_malformed_and_does_not_forgive_it():
    with make(ARM) as env:
        env.reset(seed=1)
        for _ in range(ARM.policy.max_missed - 1):
            assert not env.step(NOW)[3]
        env.step(np.zeros(6))
        stop_after = ARM.safety.nonfinite.stop_after
        for _ in range(stop_after - 1):
            env.step(np.full(6, np.nan))
            env.step(NOW)
        assert env.step(np.full(6, np.nan))[-1]["end_reason"] == "safety_stop:form.repeated"


@pytest.mark.parametrize("options", [{}, {"backend": "mujoco"}], ids=["fake", "mujoco"])
def test_a_run_with_missed_actions_and_annotations_is_sound_and_replays_equal(tmp_path, options):
    with make(record=tmp_path, **options) as env:
        for episode in range(2):
            env.reset(seed=1 if episode == 0 else None)
            env.unwrapped.annotate(
                "chunk", {"age": np.int64(episode), "latency_s": np.array([0.5, np.nan]), "ok": True}
            )
            env.unwrapped.annotate("remote", {"server": "a"})
            env.unwrapped.annotate("remote", {"server": "b", "missing": None})
            env.step(np.full(6, 0.3))
            for _ in range(3):
                *_, truncated, _ = env.step(NOW)
        assert truncated
        path = env.path
    assert_sound(path)
    assert_replays(path, transitions=8, reconstructed=0)
    rows = list(embodied_env.read_run(path).transitions())
    noted = [row["inner"]["external_inputs"].get("annotations") for row in rows]
    account = {"age": 1, "latency_s": [0.5, None], "ok": True}
    assert noted[4:] == [{"chunk": account, "remote": {"server": "b", "missing": None}}, None, None, None]
    assert [row["info"].get("annotations") for row in rows] == noted
    assert rows[1]["action"] == {"no_action": "no answer in time"}


def test_annotations_are_in_the_info_of_their_step_alone_and_are_copies():
    with make() as env:
        env.reset(seed=1)
        ages = [1, 2]
        env.unwrapped.annotate("chunk", {"ages": ages})
        ages.append(3)
        assert env.step(NOW)[-1]["annotations"] == {"chunk": {"ages": [1, 2]}}
        assert env.unwrapped.last_transition.info["annotations"] == {"chunk": {"ages": [1, 2]}}
        assert "annotations" not in env.step(NOW)[-1]


@pytest.mark.needs("explain")
def test_the_inference_on_a_policy_server_is_explained_and_counted():
    account = {"encode_s": 0.001, "wire_s": 0.004, "server_s": None, "decode_s": 0.002, "late": 2, "lost": 0}
    statistics = LatencyStatistics()
    with make() as env:
        env.reset(seed=1)
        env.unwrapped.annotate("inference", account)
        info = env.step(NOW)[-1]
    statistics.add(info)
    found = {stage: each.p50_s for stage, each in statistics.statistics().items() if stage.startswith("inference.")}
    assert found == {"inference.encode_s": 0.001, "inference.wire_s": 0.004, "inference.decode_s": 0.002}
    text = embodied_env.explain(info)
    assert "Inference on the policy server: encode 1 ms, wire 4 ms, decode 2 ms." in text
    assert "Failed inferences of this episode: late 2." in text


@pytest.mark.realtime
def test_a_run_in_real_time_is_sound_and_replays_equal(tmp_path):
    with make(record=tmp_path, backend="mujoco", pacing="realtime", clock=None) as env:
        env.reset(seed=1)
        for step in range(8):
            env.unwrapped.annotate("chunk", {"age": step})
            env.step(np.full(6, 0.3) if step < 5 else NOW)
        path = env.path
    assert_sound(path)
    assert_replays(path)


@pytest.mark.needs("audit")
@pytest.mark.parametrize(
    ("most", "forge"),
    [
        (4, lambda _: None),  # it ended too early
        (2, lambda _: None),  # or too late
        (3, lambda inner: inner.update(end_reasons=["policy_lost:other"])),
        (3, lambda inner: inner.update(action=[0.0] * 6)),
    ],
)
def test_audit_finds_a_wrong_end(tmp_path, most, forge):
    from embodied_env.extensions.audit.row_history_rules import SequenceRule

    with make(record=tmp_path) as env:
        env.reset(seed=1)
        for _ in range(3):
            env.step(NOW)
        path = env.path
    rows: Any = list(embodied_env.read_run(path).rows())
    forge(rows[-1]["inner"])
    rule = SequenceRule(changed_contract(ARM, {"policy": {"max_missed": most}}))
    assert {found.rule for row in rows for found in rule.add(row)} == {"ending.policy"}


def test_the_key_changes_a_fingerprint_only_where_it_is_not_the_default():
    assert changed_contract(ARM, {"policy": {"max_missed": 10}}).fingerprint == ARM.fingerprint
    assert IMPATIENT.fingerprint != ARM.fingerprint
    assert IMPATIENT.policy.max_missed == 3
    with pytest.raises(ContractError, match="max_missed"):
        changed_contract(ARM, {"policy": {"max_missed": 0}})


def test_a_chunk_may_be_missing():
    with embodied_env.ActionChunks(make(), 2) as env:
        env.reset(seed=1)
        *_, info = env.step(NOW)
        assert (info["chunk_result"]["executed"], info["chunk_result"]["malformed"]) == (1, False)
        assert info["safety"]["disposition"] == Severity.HOLD


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("Chunk", {}, "invalid name of an annotation"),
        (3, {}, "invalid name of an annotation"),
        ("chunk", [1], "expected a mapping"),
        ("other", {}, "too many annotations of a step: 'other'"),
        ("chunk", {"policy": object()}, "expected numbers, text and lists"),
        ("c" * 65, {}, "invalid name of an annotation"),
        ("setpoints", {"sent": 1}, "reserved name of an annotation: 'setpoints'"),
        ("grippers", {}, "reserved name of an annotation"),
        ("chunk", {"text": "x" * 20000}, "20012 characters"),
        ("chunk", {"seed": 2**140}, "an integer of 43 digits"),
        ("chunk", {"nested": json.loads("[" * 19 + "0" + "]" * 19)}, "nested deeper"),
    ],
)
def test_an_invalid_annotation_or_one_too_many_is_wrong_usage(name, values, problem):
    with make() as env:
        env.reset(seed=1)
        for number in (*range(32), 0):
            env.unwrapped.annotate(f"name_{number}", {})
        with pytest.raises(UsageError, match=problem):
            env.unwrapped.annotate(name, values)


def test_an_annotation_belongs_to_one_episode():
    with make() as env:
        with pytest.raises(ResetNeededError):
            env.unwrapped.annotate("chunk", {})
        env.reset(seed=1)
        env.unwrapped.annotate("chunk", {"age": 1})
        env.reset()
        env.step(np.zeros(6))
        assert env.unwrapped.last_transition.external_inputs.annotations == {}
