from __future__ import annotations

import pytest
from strategies import changed, document, parse

from embodied_env.contract import parse_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.qos_schema import PRESETS, QosSpec, is_latched
from embodied_env.errors import ContractError

PLAIN = parse(document())


@pytest.mark.parametrize("where", ["sensors.tcp.qos", "actuators.arm.qos"])
@pytest.mark.parametrize("qos", ["sensor_data", "default", "reliable", "latched", None, {"depth": 3}])
def test_qos_is_not_part_of_the_fingerprint(where, qos):
    assert parse(changed(where, qos)).fingerprint == PLAIN.fingerprint


def test_qos_round_trips_through_text():
    qos = {"depth": 3, "reliability": "reliable", "durability": "transient_local"}
    contract = parse(changed("sensors.tcp.qos", qos))
    assert contract.sensors["tcp"].qos == QosSpec(depth=3, durability="transient_local")
    assert parse_contract(dump_contract(contract)) == contract


def test_a_latched_publisher_is_reliable():
    with pytest.raises(ContractError) as caught:
        parse(changed("sensors.tcp.qos", {"reliability": "best_effort", "durability": "transient_local"}))
    assert caught.value.path == "sensors.tcp.qos.reliability"


def test_only_transient_local_is_latched():
    presets: dict = PRESETS
    assert [name for name in presets if is_latched(name)] == ["latched"]
    assert not is_latched(None)
