"""The public conformance suites for every shipped backend."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import embodied_env
from embodied_env import load_contract
from embodied_env.backends.backend_registry import make_backend
from embodied_env.backends.reported_delays import ReportedDelays
from embodied_env.testing import BackendContract, EnvContract, FakeBackend, ManualClock
from embodied_env.timing.clock import SteadyClock
from embodied_env.timing.delay_model import DelayDistribution, DelayModel


class TestFakeBackend(BackendContract):
    def make_backend(self, clock):
        return FakeBackend(self.contract, clock=clock)


class TestDelayedMujocoBackend(BackendContract):
    def make_backend(self, clock):
        seen = [name for name, sensor in self.contract.sensors.items() if sensor.visibility == "agent"]
        never_late = DelayModel(sensors={name: DelayDistribution(kind="constant", values=(0.0,)) for name in seen})
        world = make_backend("mujoco", self.contract, clock=clock, delays=never_late)
        return ReportedDelays(world, never_late, self.contract)


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
@pytest.mark.kills  # halting it kills its simulator, and the shared simulator's log folder is removed after it
class TestMujocoRosBackend(BackendContract):
    """One simulator for all tests, each of which starts with a reset. Lifetimes are tested in test_lifetimes.py."""

    domain_id = None
    own = (
        "test_halt_never_raises_and_is_idempotent",
        "test_only_reset_works_after_halt",
    )  # this test ends the simulator

    @pytest.fixture(autouse=True)
    def name_of_the_test(self, request):
        self.name = request.function.__name__

    epochs: Iterator[int]
    kept: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def one_simulator(cls, lasting_domain):
        cls.clock, cls.epochs = SteadyClock(), itertools.count()
        with contextlib.ExitStack() as opened:
            with lasting_domain() as cls.domain_id:
                cls.kept = opened.enter_context(BackendContract.opened(cls()))
                cls().reset(cls.kept)
            yield

    def make_backend(self, clock):
        return make_backend("mujoco_ros", self.contract, clock=clock, domain_id=self.domain_id)

    @pytest.mark.long  # test_lockstep_backend_lifetimes.py resets after a simulator has ended
    def test_only_reset_works_after_halt(self):
        super().test_only_reset_works_after_halt()

    @contextlib.contextmanager
    def opened(self):
        if self.name in self.own:
            with super().opened() as backend:
                yield backend
        else:
            yield self.kept

    def reset(self, backend, *, epoch=0, **request):
        return super().reset(backend, epoch=next(self.epochs), **request)  # an epoch is never reused


class TestCartInFake(TestFakeBackend):
    contract = load_contract("cart_goal")


class TestCartInMujoco(TestMujocoBackend):
    contract = load_contract("cart_goal")


@pytest.mark.ros
@pytest.mark.long
class TestCartInMujocoRos(TestMujocoRosBackend):
    contract = load_contract("cart_goal")


@pytest.mark.long
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
@pytest.mark.long
class TestEnvOverMujocoRos(EnvContract):
    """One simulator for all tests that reset their environment, leave it open and use default options."""

    contract = "arm_reach"
    own = ("test_step_before_reset_raises", "test_step_after_close_raises")

    def make_env(self, **options):
        given = {"clock": "virtual", "step_timeout_s": 60.0, **options}
        return embodied_env.make(self.contract, backend="mujoco_ros", **given)

    @pytest.fixture(autouse=True)
    def name_of_the_test(self, request):
        self.name = request.function.__name__

    kept: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def one_simulator(cls, lasting):
        cls.kept = lasting(cls().make_env)

    @contextlib.contextmanager
    def env(self, **options):
        if options or self.name in self.own:
            with super().env(**options) as env:
                yield env
        else:
            yield self.kept


class TestCartOverMujoco(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("cart_goal", backend="mujoco", **{"clock": "virtual", **options})


@pytest.mark.ros
@pytest.mark.long
class TestCartOverMujocoRos(TestEnvOverMujocoRos):
    contract = "cart_goal"


@pytest.mark.long
class TestDoorOverMujoco(EnvContract):
    def make_env(self, **options):
        return embodied_env.make("door_open", backend="mujoco", **{"clock": "virtual", **options})
