from delay_models import constant

import embodied_env
from embodied_env.cli.main import main
from embodied_env.timing.delay_model import DelayModel


def test_a_run_without_evidence_of_actuation_is_a_partial_profile_with_the_reason(tmp_path, capsys):
    with embodied_env.make("arm_reach", backend="mujoco", clock="virtual", record=tmp_path) as env:
        env.reset(seed=0)
        for _ in range(25):
            env.step(env.action_space.sample() * 0.0)
        path = env.path
    assert main(["profile", str(path), "--out", str(tmp_path / "profile.json")]) == 1
    assert (tmp_path / "profile.json").is_file()
    errors = capsys.readouterr().err
    assert "profile without actuation latency: measured in 0 steps, of at least 20; embodied-env calibrate" in errors


def test_the_actuation_latency_of_a_run_is_in_the_printed_table(tmp_path, capsys):
    delays = DelayModel(
        sensors={name: constant(0.0) for name in ("joints", "tcp", "target")},
        inference=constant(0.0),
        actuation=constant(0.02),
    )
    with embodied_env.make("arm_reach", delay_profile=delays, record=tmp_path) as env:
        env.reset(seed=0)
        for _ in range(25):
            env.step(env.action_space.sample() * 0.0)
        path = env.path
    assert main(["profile", str(path), "--out", str(tmp_path / "profile.json")]) == 0
    assert "actuation *" in capsys.readouterr().out
