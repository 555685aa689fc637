import subprocess
import sys

COMMAND = (sys.executable, "-m", "embodied_env.cli")


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_verbose_prints_the_traceback_of_an_error_before_its_line():
    stderr = run("contract", "show", "nope", "--verbose").stderr
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith("embodied-env: error: ")


def test_verbose_logs_to_stderr_what_was_loaded():
    done = run("-v", "contract", "fingerprint", "arm_reach")
    assert "DEBUG embodied_env.contract.contract_loader: load the contract" in done.stderr
    assert "DEBUG" not in done.stdout
