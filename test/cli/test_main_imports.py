"""The help and the first environment of a process leave out the modules that they do not need."""

import json
import subprocess
import sys

import pytest

FOREIGN = ("pydantic", "rich", "mcap", "orjson", "mujoco", "rclpy", "scipy", "jinja2", "rerun", "PIL")
"""Packages that only what uses them imports."""

REPORT = """
import json, sys
print("\\n" + json.dumps([name for name in sys.modules if name.partition(".")[0] in sys.argv[1:]]))
"""


def imported(code):
    """Return the modules of this package, and those of `FOREIGN`, that a fresh process has imported after `code`."""
    command = [sys.executable, "-c", code + REPORT, "embodied_env", "pydantic_core", "yaml", *FOREIGN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout.splitlines()[-1])


def within(modules, *names):
    return [each for each in modules if f"{each}.".startswith(tuple(f"{name}." for name in names))]


@pytest.mark.needs("evaluation")
def test_the_help_imports_no_contract_environment_or_backend():
    modules = imported("from embodied_env.cli.main import main; [main([v, '--help']) for v in ('evaluate', 'demo')]")
    parts = ("contract", "timing", "safety", "sim", "tasks", "policies", "record", "backends", "ros", "messages")
    assert {f"embodied_env.extensions.evaluation.{verb}_cli" for verb in ("evaluate", "demo")} <= set(modules)
    assert within(modules, "embodied_env.envs") == ["embodied_env.envs", "embodied_env.envs.env_options"]
    assert within(modules, "pydantic_core", "yaml", *FOREIGN, *(f"embodied_env.{part}" for part in parts)) == []


def test_make_imports_no_recorder_policy_or_extension_and_no_schema_of_info():
    modules = imported("import embodied_env; embodied_env.make('arm_reach')")
    assert "embodied_env.backends.mujoco_backend" in modules
    parts = ("record", "policies", "extensions", "cli", "testing", "core.info_types")
    assert within(modules, *FOREIGN, *(f"embodied_env.{part}" for part in parts)) == []
