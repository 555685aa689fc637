"""``embodied-env doctor --install`` checks the units of ``config/systemd`` and which of them are active."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from embodied_env.cli import installation_checks as services
from embodied_env.cli.installation_checks import examine_installation
from embodied_env.cli.main import VERBS

UNITS = sorted((Path(__file__).parents[2] / "config" / "systemd").glob("*.service"))
SHOWN = """Id=embodied-env-relay@arm_reach.service
MainPID={pid}
NRestarts=2
ActiveState={state}
SubState=running

Id=embodied-env-runner@arm_reach.service
ActiveState=inactive
"""


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """Install a ``systemctl`` that prints the two units, the first in a given state."""

    def install(state):
        program = tmp_path / "systemctl"
        program.write_text(f"#!/bin/sh\ncat <<END\n{SHOWN.format(pid=os.getpid(), state=state)}END\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return {check.name: check for check in examine_installation()["service"]}

    return install


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_valid_and_starts_a_verb(unit):
    if program := shutil.which("systemd-analyze"):
        done = subprocess.run([program, "--man=no", "verify", unit], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    service = parser["Service"]
    assert service["ExecStart"].split()[:2] == ["/usr/bin/env", "embodied-env"]
    assert service["ExecStart"].split()[2] in VERBS
    assert (service["Restart"], service["KillSignal"]) == ("on-failure", "SIGINT")


def test_active_units_are_listed_with_their_scheduling(systemctl, monkeypatch):
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_FIFO | os.SCHED_RESET_ON_FORK)
    monkeypatch.setattr(os, "sched_getparam", lambda _: os.sched_param(50))
    checks = systemctl("active")
    relay, runner = (checks[f"embodied-env-{name}@arm_reach.service"] for name in ("relay", "runner"))
    assert (relay.passed, relay.detail) == (True, "active (running), 2 restarts, SCHED_FIFO 50")
    assert (runner.passed, runner.detail) == (None, "inactive (), 0 restarts")


def test_a_failed_unit_fails_the_check_with_its_log(systemctl):
    check = systemctl("failed")["embodied-env-relay@arm_reach.service"]
    assert (check.passed, check.remedy) == (False, "journalctl -u embodied-env-relay@arm_reach.service")


@pytest.mark.parametrize(("limit", "user", "passed"), [(0, 1000, None), (80, 1000, True), (0, 0, True)])
def test_the_limit_of_the_priority_is_shown(limit, user, passed, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    check = next(services.service_checks())
    assert check.passed is passed
    assert str(limit or "SCHED_FIFO") in check.detail


def test_a_machine_without_units_passes(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    *_, units = services.service_checks()
    assert (units.name, units.passed) == ("units", None)
