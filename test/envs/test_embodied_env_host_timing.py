"""In lockstep, durations of the host are in rows and transitions, and in ``info`` only with `host_timing`."""

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from gymnasium.vector import AutoresetMode

import embodied_env
from embodied_env.core.code_types import Quality
from embodied_env.core.info_schema import info_definition, without_host_timing
from embodied_env.errors import UsageError
from embodied_env.record import read_run
from embodied_env.record.json_values import to_json_types
from embodied_env.testing import SpyObserver

STILL = np.zeros(6)


def play(env):
    """Return the infos of a reset and of two steps."""
    infos = [env.reset(seed=1)[1], env.step(STILL)[-1], env.step(STILL)[-1]]
    env.close()
    return infos


def durations_of_host(schema):
    """Yield the name of each key that the schema of info marks."""
    for group in ("properties", "patternProperties"):
        for key, value in schema.get(group, {}).items():
            if value.get("host"):
                yield key
            yield from durations_of_host(value)


def keys_of(values):
    """Return the names of all keys in nested mappings, without those of the qualities."""
    parts = [keys_of(value) for key, value in values.items() if isinstance(value, dict) and key != "quality"]
    return set(values).union(*parts)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_the_marked_keys_of_the_schema_are_absent(call):
    env = embodied_env.make("arm_reach", backend="fake", host_timing=True)
    full = play(env)[call == "step"]
    kept, marked = without_host_timing(full), set(durations_of_host(info_definition(call)))
    assert keys_of(full) - keys_of(kept) == marked - {"transport_s", "queue_s", "render_s"}  # no middleware, no camera
    assert not keys_of(kept) & marked
    assert call == "reset" or kept["latency"].keys() - {"quality"} == kept["latency"]["quality"].keys()


def test_recorded_and_observed_environments_return_the_info_of_a_plain_one(tmp_path):
    observed = SpyObserver()
    plain = play(embodied_env.make("arm_reach", backend="fake"))
    np.testing.assert_equal(play(embodied_env.make("arm_reach", backend="fake", observers=[observed])), plain)
    recorded = play(embodied_env.make("arm_reach", backend="fake", record=tmp_path))
    np.testing.assert_equal(
        [{**info, "record": None} for info in recorded], [{**info, "record": None} for info in plain]
    )


def test_observers_and_rows_have_the_durations(tmp_path):
    observed = SpyObserver()
    env = embodied_env.make("arm_reach", backend="fake", record=tmp_path, observers=[observed])
    play(env)
    rows = list(read_run(env.path).rows())
    assert rows[0]["info"]["reset"]["duration_s"] >= 0.0
    assert [row["info"] for row in rows[1:]] == [to_json_types(each.info) for each in observed.seen]
    assert all(row["info"]["latency"]["gate_s"] > 0.0 for row in rows[1:])


@pytest.mark.parametrize("clock", ["steady", pytest.param("virtual", marks=pytest.mark.long)])
def test_the_time_of_rendering_is_part_of_that_of_the_world(clock, tmp_path):
    env = embodied_env.make("door_open", backend="mujoco", record=tmp_path, host_timing=True, clock=clock)
    env.reset(seed=1)
    steps = [env.step(np.zeros(env.action_space.shape))[4]["latency"] for _ in range(4)]
    env.unwrapped.stepper.backend.halt("lost")
    lost = env.step(np.zeros(env.action_space.shape))[4]["latency"]
    env.close()
    assert any(latency["render_s"] > 0.0 for latency in steps) == (clock == "steady")
    assert all(latency["render_s"] <= latency["world_s"] for latency in steps)
    assert {latency["quality"]["render_s"] for latency in steps} == {Quality.OK}
    assert (np.isnan(lost["render_s"]), lost["quality"]["render_s"]) == (True, Quality.LOST)
    assert_sound(env.path, transitions=5)
    assert_replays(env.path, transitions=5)
    paced = embodied_env.make("door_open", backend="mujoco", pacing="realtime")
    assert not paced.unwrapped.stepper.capabilities.renders_images  # not by the step
    paced.close()


@pytest.mark.needs("vector")
def test_batched_steps_omit_them_as_single_ones_do(monkeypatch):
    from batches import Pair

    monkeypatch.setattr("embodied_env.extensions.vector.vector_env.FEWEST_SLOTS", 1)
    pair = Pair.of("arm_reach", AutoresetMode.NEXT_STEP, host_timing=False)
    pair.reset(seed=1)
    assert "latency_ms" not in pair.step()
    assert pair.ours.batched_share == 1.0
    pair.close()


def test_real_time_always_has_them():
    options: dict = {"backend": "fake", "free_running": True}
    assert "latency_ms" in play(embodied_env.make("arm_reach", **options))[1]
    with pytest.raises(UsageError, match="unsupported host_timing"):
        embodied_env.make("arm_reach", host_timing=False, **options)
