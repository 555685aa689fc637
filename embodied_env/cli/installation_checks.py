"""``doctor --install`` checks the interpreter, packages, ROS 2, extras and systemd units."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path

from embodied_env import __version__
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_lookup import Plugin, find_plugin, installed_plugins
from embodied_env.plugins.plugin_table import BUILT_IN
from embodied_env.ros.transport.checklist import Check
from embodied_env.ros.transport.ros_installation import launch_checks, ros_checks, sourced_prefixes

_PACKAGE = "embodied_env"
_PROGRAM = "embodied-env"
_TESTED = ((3, 11), (3, 13))  # first and last
_DEVELOPMENT = ("all", "bench", "dev", "docs", "lint", "test")  # extras that are not reported
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:[><=]=\s*([\d.]+))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_PYTHON_FOLDER = re.compile(r"/python(\d+\.\d+)/")
_UNITS = "embodied-env-*"
_PROPERTIES = "Id,ActiveState,SubState,MainPID,NRestarts"
_REALTIME_KERNEL = Path("/sys/kernel/realtime")  # of PREEMPT_RT
_ANSWER_S = 5.0
_INSTALL = "docs/howto/service.md describes the units"


def examine_installation() -> dict[str, list[Check]]:
    """Return the checks by section, without a connection to anything."""
    ros = list(ros_checks())
    has_ros = bool(sourced_prefixes()) or any(check.name == "messages" for check in ros)
    return {
        "interpreter": list(_interpreter_checks()),
        "package": list(_package_checks()),
        "ROS 2": [*ros, *launch_checks()],
        "extras": list(_extra_checks(has_ros=has_ros)),
        "service": list(service_checks()),
    }


def _interpreter_checks() -> Iterator[Check]:
    first, last = (".".join(map(str, each)) for each in _TESTED)
    is_tested = _TESTED[0] <= sys.version_info[:2] <= _TESTED[1]
    detail = f"{platform.python_version()}, {sys.executable}" + ("" if is_tested else f" (tested: {first} to {last})")
    yield Check(name="python", passed=True if is_tested else None, detail=detail)
    if sys.prefix == sys.base_prefix:
        remedy = "python3 -m venv --system-site-packages .venv; install the package there"
        yield Check(name="environment", passed=None, detail=f"no virtual environment: {sys.prefix}", remedy=remedy)
    else:
        yield Check(name="environment", passed=True, detail=f"virtual environment {sys.prefix}")
    if other := _foreign_folders():
        detail = f"packages of another Python on PYTHONPATH: {', '.join(other)} (expected those of {_this_python()})"
        remedy = "create the virtual environment with their Python, or open a shell without sourced ROS 2"
        yield Check(name="PYTHONPATH", passed=False, detail=detail, remedy=remedy, code="python.other")
    found, scripts = shutil.which(_PROGRAM), sysconfig.get_path("scripts")
    if found is None or Path(found).parent.resolve() != Path(scripts).resolve():
        detail = f"{_PROGRAM} of another installation: {found}" if found else f"{_PROGRAM} is not on PATH"
        remedy = f"source {scripts}/activate" if sys.prefix != sys.base_prefix else f"add {scripts} to PATH"
        yield Check(name="program", passed=None, detail=detail, remedy=remedy)
    else:
        yield Check(name="program", passed=True, detail=found)


def _this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _foreign_folders() -> list[str]:
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    versions = ((folder, _PYTHON_FOLDER.search(f"{folder}/")) for folder in folders)
    return [folder for folder, found in versions if found and found[1] != _this_python()]


def _package_checks() -> Iterator[Check]:
    folder = Path(__file__).parents[1]
    try:
        installed = distribution(_PACKAGE)
    except PackageNotFoundError:
        remedy = f"pip install -e {folder.parent}"
        yield Check(name=_PACKAGE, passed=False, detail=f"not installed: {folder}", remedy=remedy, code="missing")
        return
    if installed.version != __version__:
        detail = f"version {__version__} in {folder}, metadata of {installed.version}"
        remedy = "install it again"
        yield Check(name=_PACKAGE, passed=False, detail=detail, remedy=remedy, code="stale")
    else:
        yield Check(name=_PACKAGE, passed=True, detail=f"{__version__}, {folder}")
    yield from (_requirement_check(name, least) for name, least in _requirements(""))
    contracts = shipped_files()
    detail = f"{len(contracts)} shipped" + (f", in {next(iter(contracts.values())).parent}" if contracts else "")
    yield Check(name="contracts", passed=bool(contracts), detail=detail, remedy="" if contracts else "install it again")
    for plugin in (plugin for kind in BUILT_IN for plugin in installed_plugins(kind)):
        yield _plugin_check(plugin)


def _plugin_check(plugin: Plugin) -> Check:
    """Check that the module of a plug-in exists and that its name is registered once."""
    detail, name = f"{plugin.target}, of the group {plugin.group}", f"plug-in {plugin.name}"
    try:
        find_plugin(plugin.group.partition(".")[2], plugin.name)
    except UsageError as error:
        return Check(name=name, passed=False, detail=str(error), code="ambiguous")
    if find_spec(re.split(r"[.:]", plugin.target)[0]) is None:
        remedy = "install its package again, or uninstall it"
        return Check(name=name, passed=False, detail=f"{detail}: no such module", remedy=remedy, code="missing")
    return Check(name=name, passed=True, detail=detail)


def _requirements(extra: str) -> list[tuple[str, str]]:
    """Return (package, minimum version or "") of each requirement of an extra."""
    found = []
    for text in requires(_PACKAGE) or ():
        of_extra, match = _EXTRA.search(text), _REQUIREMENT.match(text)
        if match is not None and (of_extra[1] if of_extra else "") == extra:
            found.append((match[1], match[2] or ""))
    return found


def _requirement_check(name: str, least: str) -> Check:
    remedy = f'pip install "{name}>={least}"' if least else f"pip install {name}"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name=name, passed=False, detail="not installed", remedy=remedy, code="missing")
    if _numbers(found) < _numbers(least):
        detail = f"{found} (expected {least} or newer)"
        return Check(name=name, passed=False, detail=detail, remedy=remedy, code="version")
    return Check(name=name, passed=True, detail=found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _extra_checks(*, has_ros: bool) -> Iterator[Check]:
    """Yield a check of each extra, which fails only for versions that are too old."""
    try:
        extras = distribution(_PACKAGE).metadata.get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return
    for extra in sorted(set(extras) - set(_DEVELOPMENT)):
        checks = [_requirement_check(name, least) for name, least in _requirements(extra)]
        missing = [check for check in checks if check.code == "missing"]
        remedy = f'pip install "{_PACKAGE}[{extra}]"'
        if extra == "ros" and missing and has_ros:
            yield Check(name=extra, passed=True, detail="not required with another installation of ROS 2")
        elif missing:
            detail = f"not installed: {', '.join(check.name for check in missing)}"
            yield Check(name=extra, passed=None, detail=detail, remedy=remedy)
        else:
            detail = ", ".join(f"{check.name} {check.detail}" for check in checks)
            if all(check.passed for check in checks):
                yield Check(name=extra, passed=True, detail=detail)
            else:
                yield Check(name=extra, passed=False, detail=detail, remedy=remedy, code="version")


def service_checks() -> Iterator[Check]:
    """Yield checks of the active real-time settings and units, none of which is required."""
    yield _limit_check()
    has_kernel = _REALTIME_KERNEL.is_file() and _REALTIME_KERNEL.read_text(encoding="ascii").strip() == "1"
    detail = f"{os.uname().release} {'with' if has_kernel else 'without'} PREEMPT_RT"
    yield Check(name="kernel", passed=has_kernel or None, detail=detail)
    units = list(_unit_checks())
    yield from units or [Check(name="units", passed=None, detail=f"no {_UNITS} is loaded", remedy=_INSTALL)]


def _limit_check() -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if not limit and os.geteuid():
        remedy = "add '<user> - rtprio 80' to /etc/security/limits.conf, or use the units"
        return Check(name="real time", passed=None, detail="SCHED_FIFO is not permitted to this user", remedy=remedy)
    highest = limit if os.geteuid() else os.sched_get_priority_max(os.SCHED_FIFO)
    return Check(name="real time", passed=True, detail=f"SCHED_FIFO up to priority {highest}")


def _unit_checks() -> Iterator[Check]:
    if (program := shutil.which("systemctl")) is None:
        return
    command = [program, "show", f"--property={_PROPERTIES}", _UNITS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    for block in done.stdout.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        state = values.get("ActiveState", "unknown")
        detail = f"{state} ({values.get('SubState', '')}), {values.get('NRestarts', '0')} restarts"
        with suppress(OSError, ValueError):  # it has just ended
            pid = int(values.get("MainPID", "0"))
            if pid and os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO:
                detail += f", SCHED_FIFO {os.sched_getparam(pid).sched_priority}"
        is_failed = state == "failed"
        remedy = f"journalctl -u {values['Id']}" if is_failed else ""
        passed = True if state == "active" else False if is_failed else None
        yield Check(name=values["Id"], passed=passed, detail=detail, remedy=remedy, code="unit" if is_failed else "")
