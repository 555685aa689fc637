"""Packaging for pip and colcon, all of it here because colcon reads this call and no [project] table."""

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

NAME = "embodied_env"
HERE = Path(__file__).resolve().parent  # colcon --symlink-install runs a link to this file from its build folder
VERSION: dict[str, str] = {}
exec((HERE / NAME / "_version.py").read_text(encoding="utf-8"), VERSION)  # noqa: S102 - our own file, without imports
PACKAGE = ET.parse(HERE / "package.xml").getroot()  # noqa: S314 - our own file, which has the maintainer and the URLs
VERBS = (
    *("audit", "calibrate", "compare", "contract", "demo", "doctor", "evaluate", "export", "identify", "launch"),
    *("policy", "profile", "relay", "repair", "replay", "report", "runner", "serve", "sim", "view"),
)
RUN_VERB = """#!/bin/sh
# `ros2 run embodied_env VERB`: run the verb that this file is named after. The program is in the same folder after
# colcon, in bin after pip.
folder=$(dirname "$0")
program=$folder/embodied-env
[ -x "$program" ] || program=$folder/../../bin/embodied-env
exec "$program" "$(basename "$0")" "$@"
"""


def write_executables() -> list[str]:
    """Write an executable for each verb below the current folder, and return their paths."""
    folder = Path("build", "ros2_run")
    folder.mkdir(parents=True, exist_ok=True)
    for verb in VERBS:
        (folder / verb).write_text(RUN_VERB, encoding="utf-8")
        (folder / verb).chmod(0o755)
    return [str(folder / verb) for verb in VERBS]


class RosDistribution(Distribution):
    """Installs `data_files`, by which ros2 finds the package, with ``pip install -e``, which asks for `has_data`."""

    has_data = Distribution.has_data_files


class BuildFromSources(build_py):
    """Removes the modules of an earlier build first, which ``pip install .`` would install with the others."""

    def run(self) -> None:
        """Build all modules in an empty folder."""
        shutil.rmtree(Path(self.build_lib, NAME), ignore_errors=True)
        super().run()


ONLY_WHERE_WHEELS_ARE = "; platform_system == 'Linux' and platform_machine == 'x86_64'"
EXTRAS = {
    "ros": [
        f"ros-jazzy-rclpy[fastrtps]==7.1.6{ONLY_WHERE_WHEELS_ARE}",
        f"ros-common-interfaces==5.3.6{ONLY_WHERE_WHEELS_ARE}",
    ],
    "sim": ["mujoco>=4"],
    "images": ["pillow>=10"],
    "record": ["mcap>=1.2", "orjson>=3.10"],
    "analysis": ["scipy>=1.11"],
    "report": ["jinja2>=3.1", "scipy>=1.11"],
    "multi": ["pettingzoo>=1.25"],
    "onnx": ["onnxruntime>=1.19"],
    "remote": ["websockets>=17", "msgpack>=1.0.5", "pyzmq>=25"],
    "train": ["stable-baselines3>=2.7", "tqdm>=4.60", "onnx>=1.16", "onnxscript>=0.5", "onnxruntime>=1.19"],
    "scale": ["ray>=2.40"],
    "parquet": ["pyarrow>=15", "pillow>=10"],
    "minari": ["minari>=0.5.4", "pyarrow>=15", "pillow>=10"],
    "view": ["rerun-sdk>=0.26"],
    "foxglove": ["foxglove-sdk>=0.30"],
    "bench": ["rtgym>=0.16"],
    "test": [
        *(
            "pytest>=8.0",
            "gymnasium>=1.4",  # the wrappers of earlier ones differ
            "pytest-xdist>=3.6",
            "hypothesis>=6.150",
            "jsonschema>=4.20",
            "psutil>=5.9",
            "pyarrow>=15",
            "minari>=0.5.4",
        ),
        *("scipy>=1.11", "onnx>=1.16", "onnxscript>=0.5", "onnxruntime>=1.19", "tqdm>=4.60"),
        # The tests of training run on one Python: they take long, and PyTorch is large.
        *(f"{requirement}; python_version < '3.12'" for requirement in ("torch==2.13.0", "stable-baselines3>=2.7")),
        *("websockets>=17", "msgpack>=1.0.5", "pyzmq>=25", "foxglove-sdk>=0.30"),
    ],
    "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.27"],
    "dev": ["nox>=2024.4", "pre-commit>=3.5"],
    "lint": ["ruff==0.17.5", "mypy==2.4.1", "types-PyYAML", "types-jsonschema", "types-psutil"],
}
IN_ALL = ("ros", "sim", "images", "record", "report", "multi", "onnx", "remote")
EXTRAS["all"] = [requirement for extra in IN_ALL for requirement in EXTRAS[extra]]

setup(
    name=NAME,
    cmdclass={"build_py": BuildFromSources},
    distclass=RosDistribution,
    version=VERSION["__version__"],
    description="A Gymnasium environment for ROS 2 robots in which every step comes with a full account",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    maintainer=PACKAGE.findtext("maintainer"),
    maintainer_email=PACKAGE.find("maintainer").get("email"),
    project_urls={url.get("type", "website"): url.text for url in PACKAGE.findall("url")},
    keywords=["robotics", "reinforcement learning", "ROS 2", "Gymnasium", "MuJoCo"],
    python_requires=">=3.11",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={
        NAME: [
            "py.typed",
            "ros/transport/large_messages.xml",
            "sim/models/*.xml",
            "extensions/report/templates/*",
        ]
    },
    zip_safe=False,
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        (f"lib/{NAME}", write_executables()),  # for ros2 run
        (f"share/{NAME}/launch", sorted(map(str, Path("launch").glob("*.launch.py")))),
        (
            f"share/{NAME}/config",
            [*sorted(map(str, Path("config").glob("*.*"))), f"{NAME}/ros/transport/large_messages.xml"],
        ),
        (f"share/{NAME}/config/gazebo", sorted(map(str, Path("config/gazebo").glob("*.*")))),
        (f"share/{NAME}/examples", sorted(map(str, Path("examples").glob("*.py")))),
        (f"share/{NAME}/config/policies", sorted(map(str, Path("config/policies").glob("*.*")))),
        (f"share/{NAME}/config/robots", sorted(map(str, Path("config/robots").glob("*.yaml")))),
        (f"share/{NAME}/config/systemd", sorted(map(str, Path("config/systemd").glob("*.service")))),
        (f"share/{NAME}/config/teams", sorted(map(str, Path("config/teams").glob("*.yaml")))),
    ],
    install_requires=[
        "gymnasium>=1.2",
        "numpy>=1.26",
        "pydantic>=2.7",  # its validator, pydantic_core
        "annotated-types>=0.6",  # of pydantic
        "pyyaml>=6.0.1",
        "rich>=13.0",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["embodied-env = embodied_env.cli.main:main"]},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: {version}" for version in ("3", "3.11", "3.12", "3.13")),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
