"""Slots of a vector step the worlds of a contract with the units of a driver as single environments do."""

import numpy as np
from evidence import assert_replays, assert_sound
from unit_contracts import driver_units_contract

import embodied_env
from embodied_env.record import read_run


def test_slots_are_bit_identical_to_single_environments():
    contract = driver_units_contract()
    vector = embodied_env.make_vec(contract, num_envs=2)
    singles = [embodied_env.make(contract) for _ in range(2)]
    vector.reset(seed=7)
    for index, env in enumerate(singles):
        env.reset(seed=7 + index)
    rng = np.random.default_rng(0)
    for _ in range(12):
        actions = {"arm": rng.uniform(-1, 1, (2, 2)), "hand": rng.uniform(-1, 1, (2, 1))}
        observation, *_, info = vector.step(actions)
        for index, env in enumerate(singles):
            own, *_, own_info = env.step({name: each[index] for name, each in actions.items()})
            assert all(np.array_equal(observation[key][index], values) for key, values in own.items())
            for key in ("applied_si", "applied_driver"):
                found = {joint: values[index] for joint, values in info["action"][key].items() if joint[0] != "_"}
                assert found == own_info["action"][key]
    vector.close()
    for env in singles:
        env.close()


def test_a_recorded_slot_has_the_values_of_the_driver(tmp_path):
    contract, rows = driver_units_contract(), []
    for name, count in (("slots", 2), ("single", 1)):
        vector = embodied_env.make_vec(contract, num_envs=count, record=tmp_path / name)
        vector.reset(seed=7)
        for _ in range(5):
            vector.step({"arm": np.full((count, 2), 0.5), "hand": np.full((count, 1), -1.0)})
        vector.close()
        for run in (file.parent for file in (tmp_path / name).rglob("manifest.json")):
            assert_sound(run)
            assert_replays(run, contract=contract)
            rows.append([row["inner"]["sensors"]["joints"]["driver"] for row in read_run(run).rows()])
    assert rows.count(rows[-1]) >= 2
    assert all(len(row["position"]) == 4 for each in rows for row in each)
