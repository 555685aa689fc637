"""`contract picture` executes no untrusted task."""

from shipped_contracts import changed_text

from embodied_env.cli.main import main


def test_contract_picture_does_not_execute_untrusted_task(tmp_path, capsys):
    text = changed_text("arm_reach", {"task.type": "./own.py:Own"})
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n", encoding="utf-8")
    assert main(["contract", "picture", str(tmp_path / "own.yaml"), "--out", str(tmp_path)]) == 2
    assert "--trust-task" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_contract_picture_needs_a_directory_to_write_to(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["contract", "picture", "arm_reach", "--out", str(tmp_path / "file")]) == 2
    assert "--out: " in capsys.readouterr().err
