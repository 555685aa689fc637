"""A file has its whole content or its old one, and a new file replaces none."""

from typing import Any

import pytest

from embodied_env.contract.bounded_files import write_file


def test_interrupted_write_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("old")
    text: Any = object()
    with pytest.raises(TypeError):
        write_file(tmp_path / "file", text)  # fails when the new file is open
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_file_that_appears_before_the_write_is_not_replaced(tmp_path):
    (tmp_path / "file").write_text("of somebody else")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", "new", replace=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "of somebody else")]


@pytest.mark.parametrize("replace", [True, False])
def test_written_file_has_the_content_and_the_usual_mode(tmp_path, replace):
    write_file(tmp_path / "file", b"content", replace=replace)
    (tmp_path / "usual").touch()
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"file", "usual"}


def test_an_existing_file_is_replaced_as_a_whole(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.hardlink_to(file)  # has what is written into the old file
    write_file(file, "new")
    assert (file.read_text(), link.read_text()) == ("new", "old")
