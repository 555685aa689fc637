"""Compilation of test files before they are collected, shared by the workers of a run."""

import contextlib

from _pytest.assertion import rewrite


def compile_part(config, part, parts):
    """Compile every `parts`-th test file of the run from number `part`, unless its bytecode is newer.

    Every worker collects all files. It would compile all of them in a new checkout, which takes longer than to import
    them.
    """
    state = config.stash[rewrite.assertstate_key]
    for file in _files(config)[part::parts]:
        folder = rewrite.get_cache_dir(file)
        compiled = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if compiled.is_file() and compiled.stat().st_mtime > file.stat().st_mtime:
            continue
        if not rewrite.try_makedirs(folder):
            return
        with contextlib.suppress(SyntaxError):  # the collection reports it
            version, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, version, compiled)


def _files(config):
    places = {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}
    return sorted({file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))})
