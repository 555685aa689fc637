"""Everyday commands: ``nox`` runs tests, lint and types; ``nox -s tests -- test/safety`` runs some tests."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments are those of pytest."""
    session.install("-e", ".[all,test]")
    session.run("pytest", *session.posargs)


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
    session.install("-e", ".[all,lint]")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/site; ``nox -s docs -- serve`` shows it while you write."""
    session.install("-e", ".[all,docs]")
    session.run("mkdocs", *(session.posargs or ("build",)))
