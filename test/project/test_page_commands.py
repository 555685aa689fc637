"""Every command of `embodied-env` in the README and the documentation has a verb, options and arguments that exist."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from extension_marks import needing

from embodied_env.cli import main as command_line
from embodied_env.cli.launch.launch_arguments import complete_values
from embodied_env.cli.launch.targets import TARGETS
from embodied_env.core.plugin_loading import load_extension

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(?:bash|sh|text)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(embodied-env [^`]+)`")
PLACEHOLDER = re.compile(r"<[a-z ]+>|\.\.\.$")
OPTIONAL = re.compile(r" \[(?:--|[A-Z])[^]]*\]")  # in a synopsis
OPERATORS = "|&;()<>"
STARTED = re.compile(r"embodied-env\n(.+)|ros2\)?\n(?:run|launch)\nembodied_env\n(.+)", re.DOTALL)
MENTION = re.compile(r"required|expected one argument|expected at least one argument")
"""The error of a command in a sentence, which may leave out what the sentence is not about."""


def commands_in(line):
    """Yield the arguments of each command of `embodied-env` in a line, which `ros2` may start."""
    lexer = shlex.shlex(OPTIONAL.sub("", PLACEHOLDER.sub("X", line)), posix=True, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    words = []
    for word in [*lexer, ";"]:
        if not {*word} <= {*OPERATORS}:
            words.append(word)
            continue
        if found := STARTED.search("\n".join(words)):
            verb, *arguments = (found[1] or found[2]).split("\n")
            target = verb.removesuffix(".launch.py")
            yield (verb, *arguments) if target == verb else ("launch", target, *arguments)
        words = []


def commands_by_verb():
    """Return the commands by verb and needed extensions, each with its page, and whether it is whole."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        blocks = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", "").splitlines()]
        for line, is_whole in [*((line, True) for line in blocks), *((span, False) for span in SPAN.findall(text))]:
            if re.search(r"embodied[-_]env ", line):
                for command in commands_in(line):
                    needs = tuple(mark.args[0] for mark in needing(*command))
                    place = page.relative_to(ROOT).as_posix(), is_whole
                    found.setdefault((command[0], *needs), {}).setdefault(command, place)
    return found


def check_arguments(args):
    """Check the arguments of a launch instead of starting it, and report success."""
    if "target" in args and args.target in TARGETS:
        given = dict(word.split(":=", 1) for word in args.arguments)
        complete_values(args.target, TARGETS[args.target].arguments, given)
    return 0


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Return a function that parses a command line whose run directories and folders of files exist."""
    load = load_extension
    monkeypatch.setattr(
        command_line,
        "load_extension",
        lambda name, **options: SimpleNamespace(add_arguments=load(name, **options).add_arguments, run=check_arguments),
    )
    monkeypatch.chdir(tmp_path)

    def parse_command(command):
        words = [word.replace("HEAD", "0" * 64) for word in command]
        for path in (Path(word) for word in words if not word.startswith(("-", "/"))):
            (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
        return command_line.main(words)

    return parse_command


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(commands, marks=[pytest.mark.needs(each) for each in needs], id="-".join((verb, *needs)))
        for (verb, *needs), commands in commands_by_verb().items()
    ],
)
def test_arguments_of_commands_exist(commands, parse, capsys):
    failed = {}
    for command, (page, is_whole) in commands.items():
        if parse(command) != 0:
            error = capsys.readouterr().err
            if is_whole or not MENTION.search(error):
                failed[page, command] = error
    assert failed == {}


def test_the_commands_of_all_pages_are_found():
    found = {command for commands in commands_by_verb().values() for command in commands}
    assert ("demo",) in found
    assert ("launch", "sim", "contract:=arm_reach", "policy:=scripted") in found
    assert ("sim", "arm_reach", "--free-running") in found
    assert len(found) > 150
