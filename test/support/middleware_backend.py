"""A fake world behind middleware, and a contract with two actuators."""

import dataclasses

import strategies

from embodied_env.backends.fake_backend import FakeBackend


def two_actuators():
    """Return a contract with two actuators, a finite horizon, a scalar reset option and a hidden sensor."""
    limits = strategies.document()["actuators"]["arm"]["joints"]["a"]
    actuator = {"type": "std_msgs/msg/Float64MultiArray", "command": "position_delta"}
    document = strategies.document()
    document["actuators"] = {
        "left": {**actuator, "topic": "left", "joints": {"a": limits}},
        "right": {**actuator, "topic": "right", "joints": {"b": limits}},
    }
    document["episode"] = {"horizon_steps": 6, "kind": "finite_horizon"}
    document["reset_options"]["weight"] = {"type": "scalar", "low": 0.1, "high": 0.2}
    document["sensors"]["gap"] = {
        "topic": "gap",
        "type": "sensor_msgs/msg/Range",
        "fields": {"range": {"unit": "m", "low": 0.0, "high": 4.0}},
        "max_age_s": 0.15,
        "visibility": "evaluator",
    }
    return strategies.parse(document)


class MiddlewareBackend(FakeBackend):
    """A fake world whose messages carry middleware stamps, except at its third step."""

    def __init__(self, contract, *, clock):
        super().__init__(contract, clock=clock)
        self.capabilities = dataclasses.replace(self.capabilities, transport=True)

    def _snapshot(self):
        snapshot = super()._snapshot()
        arrival_ns = self._clock.system_ns()
        stamps: dict = {"source_ns": arrival_ns - 300, "received_ns": arrival_ns - 100} if self._step != 3 else {}
        samples = {
            name: dataclasses.replace(sample, arrival_system_ns=arrival_ns, **stamps)
            for name, sample in snapshot.samples.items()
        }
        return dataclasses.replace(snapshot, samples=samples)
