import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from learnable_tasks import follow

import embodied_env
from embodied_env.contract.contract_loader import dump_contract

pytest.importorskip("ray.rllib", reason='needs pip install "ray[rllib]"')
pytest.importorskip("torch", reason="needs torch, of the extra train")
pytest.importorskip("onnx", reason="needs onnx, of the extra train")
pytestmark = [pytest.mark.long, pytest.mark.needs("evaluation", "vector")]

ROOT = Path(embodied_env.__file__).parent.parent


def trained(tmp_path, *more):
    (tmp_path / "follow.yaml").write_text(dump_contract(follow()))
    paths = [str(ROOT), str(ROOT / "test" / "support"), str(ROOT / "examples")]
    words = [str(tmp_path / "follow.yaml"), "--backend", "fake", "--quiet", "--out", str(tmp_path / "runs")]
    fixed = ["--feature-steps", "200", "--evaluate", "fake", "--episodes", "2"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_rllib.py"), *words, *fixed, *more],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(done.stdout.splitlines()[-1])


def test_rllib_trains_in_parallel_evaluates_and_resumes(tmp_path):
    first = trained(tmp_path, "--steps", "128", "--num-envs", "2")
    summary = json.loads((first / "summary.json").read_text())
    assert summary["evaluations"]["fake"]["problem"] == ""
    final = first / "checkpoints" / "final"
    then = trained(tmp_path, "--steps", "128", "--resume", str(final))
    finals = [path / "checkpoints" / "final" for path in (first, then)]
    assert len({(folder / "policy.policy.yaml").read_bytes() for folder in finals}) == 1
    assert len({(folder / "policy.onnx").read_bytes() for folder in finals}) == 2


@pytest.mark.parametrize(("terminated", "expected"), [(False, 1.0 + 0.5 * 10.0), (True, 1.0)])
def test_rllib_learner_bootstraps_on_truncated_not_terminated(terminated, expected):
    """A step of reward 1 into a state of value 10, as preprocessed and counted by the learner."""
    from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

    ending = {"terminated": terminated, "truncated": not terminated}
    episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0, **ending)
    batch = {}
    AddOneTsToEpisodesAndTruncate()(rl_module=None, batch=batch, episodes=[episode.to_numpy()], shared_data={})
    flags = {name: np.ravel(next(iter(batch[name].values()))).astype(float) for name in ("terminateds", "truncateds")}
    found = compute_value_targets(
        values=np.array([0.0, 10.0]), rewards=np.array([1.0, 0.0]), gamma=0.5, lambda_=1.0, **flags
    )
    assert found[0] == pytest.approx(expected)
