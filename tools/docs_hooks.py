"""Generate the command line reference of the documentation site from `--help`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "reference/cli.md"
_HEAD = """# Command line

Every verb prints `embodied-env: error: ...` to stderr when it fails, in one line or a short list.
`--json` prints the result as JSON.

| exit status | meaning |
|---|---|
| 0 | sound |
| 1 | the evidence is not sound, or the run failed |
| 2 | wrong usage of the command line, or an invalid contract |
| 130, 143, 129 | ended by SIGINT, SIGTERM or SIGHUP, after the robot has come to rest |
| 141 | the reader of the output, such as `head`, closed the pipe |
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated page to the site."""
    files.append(File.generated(config, PAGE, content=_page()))
    return files


def _page() -> str:
    parts = [_HEAD, "## embodied-env", _block(help_text := _help())]
    for verb in _choices(help_text):
        parts += [f"## {verb}", _block(text := _help(verb))]
        for action in _choices(text):
            parts += [f"### {verb} {action}", _block(_help(verb, action))]
    return "\n\n".join(parts) + "\n"


def _help(*words: str) -> str:
    command = [sys.executable, "-m", "embodied_env.cli", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "88"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def _choices(text: str) -> list[str]:
    """Return the subcommands that a help text lists with four spaces of indent below VERB or ACTION."""
    listed = re.search(r"^  (?:VERB|ACTION)\n((?: {4}.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^ {4}(\w+)", listed[1], re.MULTILINE) if listed else []


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
