"""Write a file that a user names, so that its name never has a part of the content."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: str | Path, content: str | bytes, *, replace: bool = True) -> None:
    """Write a file whole or not at all, where `replace` allows an existing one.

    In a text, a lone surrogate becomes "?". Raises OSError, and FileExistsError without `replace`.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)  # it could be a link
        with temporary.open("xb") as file:
            file.write(content.encode("utf-8", errors="replace") if isinstance(content, str) else content)
        if replace:
            temporary.replace(path)
        else:
            _rename_to_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Give the file the name `path`, or raise FileExistsError if it exists, which a rename would replace."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as a shared folder
        path.touch(exist_ok=False)
        temporary.replace(path)
