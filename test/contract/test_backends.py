"""The shipped suites over every shipped backend."""

from __future__ import annotations

import pytest

import embodied_env
from embodied_env.backends import make_backend
from embodied_env.testing import BackendContract, EnvContract, FakeBackend


class TestFakeBackend(BackendContract):
    def make_backend(self, clock):
        return FakeBackend(self.contract, clock=clock)


class TestMujocoBackend(BackendContract):
    def make_backend(self, clock):
        return make_backend("mujoco", self.contract, clock=clock)


@pytest.mark.ros
class TestMujocoRosBackend(BackendContract):
    def make_backend(self, clock):
        return make_backend("mujoco_ros", self.contract, clock=clock)


class TestEnvOverFake(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("arm_reach", backend="fake", **{"clock": "virtual", **options})


class TestEnvOverMujoco(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("arm_reach", backend="mujoco", **{"clock": "virtual", **options})


@pytest.mark.ros
class TestEnvOverMujocoRos(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("arm_reach", backend="mujoco_ros", **{"clock": "virtual", **options})
