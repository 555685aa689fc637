from __future__ import annotations

import pytest

from embodied_env.contract.yaml_text import checked_text, comment, dump_yaml, read_yaml
from embodied_env.errors import ContractError

LINE_ENDS = ["\n", "\r", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("flow", [True, None])
@pytest.mark.parametrize(
    "text", ["1e5", "yes", "null", "1:30", "010", "a: b", "- x", "model::joint", "", "é", "# x", "="]
)
def test_text_that_looks_like_another_type_is_written_as_text(text, flow):
    document = {text or "key": [text, {"inner": text}]}
    assert read_yaml(checked_text(dump_yaml(document, flow=flow), document), "file") == document


@pytest.mark.parametrize("end", [*LINE_ENDS, "\u202e", "\x1b[2J"])
def test_a_comment_is_one_printable_line(end):
    line = comment(f"driver{end}safety: {{mode: monitor}}")
    assert len(line.splitlines()) == 1
    assert read_yaml(f"{line}\na: 1\n", "file") == {"a": 1}
    assert end[0] not in line


def test_a_text_that_reads_as_another_document_is_refused():
    with pytest.raises(ContractError, match="reads as another document"):
        checked_text("a: 1\nb: 2\n", {"a": 1})


@pytest.mark.parametrize("document", [{"a\nb": 1}, {"a": {"b": ["x\u2028y"]}}, {"a": {"": 1}}])
def test_control_characters_in_a_written_document_are_refused(document):
    with pytest.raises(ContractError, match="invalid name"):
        checked_text(dump_yaml(document), document)
