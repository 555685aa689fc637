"""Cost of importing the package, and errors for missing optional packages."""

import subprocess
import sys

import pytest

EXTRAS = [  # modules of the packages in `embodied_env.errors.EXTRAS`
    *("rclpy", "mujoco", "PIL", "mcap", "orjson", "scipy", "jinja2", "pettingzoo", "onnxruntime", "msgpack", "zmq"),
    *("websockets", "stable_baselines3", "ray", "pyarrow", "minari", "rerun", "foxglove"),
]


@pytest.mark.needs("audit", "evaluation", "explain", "vector")  # all names include theirs
def test_import_of_all_names_needs_no_extra():
    script = f"import sys; sys.modules |= dict.fromkeys({sorted(EXTRAS)!r}); from embodied_env import *; print(make.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "make\n"


@pytest.mark.parametrize(
    ("missing", "backend", "remedy"),
    [("rclpy", "mujoco_ros", "embodied_env[ros]"), ("mujoco", "mujoco", "embodied_env[sim]")],
)
def test_missing_package_is_named_with_remedy(missing, backend, remedy):
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from embodied_env.errors import MissingDependencyError\n"
        "import embodied_env\n"
        "try:\n"
        f"    env = embodied_env.make('arm_reach', backend={backend!r})\n"
        "    env.reset()\n"
        "except MissingDependencyError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert missing in done.stdout
    assert remedy in done.stdout


ANALYSES = {  # extension -> its use
    "calibration": (
        "from embodied_env.extensions.calibration.calibration import calibrate\n"
        "calibrate(embodied_env.load_contract('arm_reach'), backend='mujoco', pacing='realtime')\n"
    ),
    "identification": (
        "from embodied_env.extensions.identification.identification import identify\n"
        "identify([], embodied_env.load_contract('arm_reach'))\n"
    ),
    "comparison": "import embodied_env.extensions.comparison.run_comparison\n",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ANALYSES])
def test_missing_scipy_disables_an_analysis(name):
    script = (
        "import sys\n"
        "sys.modules['scipy'] = None\n"
        "import embodied_env\n"
        "from embodied_env.errors import MissingDependencyError\n"
        "try:\n"
        + "".join(f"    {line}\n" for line in ANALYSES[name].splitlines())
        + "except MissingDependencyError as error:\n"
        "    print('embodied_env[analysis]' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


@pytest.mark.parametrize(
    "module",
    [
        "core.latency_statistics",
        pytest.param("extensions.evaluation.evaluate_cli", marks=pytest.mark.needs("evaluation")),
        pytest.param("extensions.report.run_report", marks=pytest.mark.needs("report")),
    ],
)
def test_missing_scipy_disables_only_analyses(module):
    script = f"import sys; sys.modules['scipy'] = None; import embodied_env.{module}"
    subprocess.run([sys.executable, "-c", script], check=True)
