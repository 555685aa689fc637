"""The shipped suites over every shipped backend."""

from __future__ import annotations

import pytest

import embodied_env
from embodied_env import load_contract
from embodied_env.backends import make_backend
from embodied_env.testing import BackendContract, EnvContract, FakeBackend, ManualClock


class TestFakeBackend(BackendContract):
    def make_backend(self, clock):
        return FakeBackend(self.contract, clock=clock)


class TestMujocoBackend(BackendContract):
    def make_backend(self, clock):
        return make_backend("mujoco", self.contract, clock=clock)


class TestRealtimeMujocoBackend(BackendContract):
    def make_clock(self):
        return ManualClock()

    def make_backend(self, clock):
        return make_backend("mujoco", self.contract, clock=clock, pacing="realtime")


class TestCartInRealtimeMujoco(TestRealtimeMujocoBackend):
    contract = load_contract("cart_goal")


@pytest.mark.ros
class TestMujocoRosBackend(BackendContract):
    def make_backend(self, clock):
        return make_backend("mujoco_ros", self.contract, clock=clock)


class TestCartInFake(TestFakeBackend):
    contract = load_contract("cart_goal")


class TestCartInMujoco(TestMujocoBackend):
    contract = load_contract("cart_goal")


@pytest.mark.ros
@pytest.mark.long
class TestCartInMujocoRos(TestMujocoRosBackend):
    contract = load_contract("cart_goal")


class TestDoorInMujoco(TestMujocoBackend):
    contract = load_contract("door_open")


@pytest.mark.ros
@pytest.mark.long
class TestDoorInMujocoRos(TestMujocoRosBackend):
    contract = load_contract("door_open")


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


class TestCartOverMujoco(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("cart_goal", backend="mujoco", **{"clock": "virtual", **options})


@pytest.mark.ros
@pytest.mark.long
class TestCartOverMujocoRos(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("cart_goal", backend="mujoco_ros", **{"clock": "virtual", **options})


class TestDoorOverMujoco(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("door_open", backend="mujoco", **{"clock": "virtual", **options})
