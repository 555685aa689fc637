"""Loads an exported dataset with LeRobot, edits and merges it, and pushes it to a hub that only lists the files."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import DatasetCard, HfApi
from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.utils import dataset_to_policy_features

root, scratch = Path(sys.argv[1]), Path(sys.argv[2])
dataset = LeRobotDataset("local/exported", root=root, delta_timestamps={"action": [0.0, 1 / 20]})
info = json.loads((root / "meta" / "info.json").read_text())
assert (len(dataset), dataset.num_episodes) == (info["total_frames"], info["total_episodes"])
frame = dataset[1]
assert frame["action"].shape == (2, *info["features"]["action"]["shape"])
torch.testing.assert_close(frame["action"][1], dataset[2]["action"][0])
assert frame["task"] == dataset.meta.tasks.index[0]
for name, feature in dataset_to_policy_features(dataset.features).items():
    if name == "observation.depth_image":
        assert (frame[name].dtype, tuple(frame[name].shape)) == (torch.float32, tuple(feature.shape))
        assert name not in dataset.meta.stats
    else:
        assert tuple(frame[name].shape[-len(feature.shape) :]) == tuple(feature.shape), name
        assert np.isfinite(dataset.meta.stats[name]["q01" if feature.type.name != "VISUAL" else "mean"]).all(), name

if "observation.depth_image" not in dataset.features:  # LeRobot edits no column with several axes
    shorter = delete_episodes(LeRobotDataset("local/exported", root=root), [0], scratch / "shorter", "local/shorter")
    merged = merge_datasets([LeRobotDataset("local/exported", root=root), shorter], "local/merged", scratch / "merged")
    assert merged.num_episodes == 2 * dataset.num_episodes - 1
    assert {*merged.meta.stats["action"]} == {*dataset.meta.stats["action"]}

pushed: list[str] = []


def upload_folder(_self: HfApi, *, folder_path: Path, **_: object) -> None:
    pushed.extend(path.relative_to(folder_path).as_posix() for path in folder_path.rglob("*") if path.is_file())


for method in ("create_repo", "delete_tag", "create_tag"):
    setattr(HfApi, method, lambda *_, **__: None)
HfApi.upload_folder = upload_folder
DatasetCard.push_to_hub = lambda self, **_: pushed.append(f"card with tags {self.data.tags}")
DatasetCard.validate = lambda _self, **_: None
LeRobotDataset("local/exported", root=root).push_to_hub()
print(*sorted(pushed), sep="\n")
