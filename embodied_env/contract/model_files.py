"""The files of a MuJoCo model, includes, meshes and textures, found without compiling it."""

from __future__ import annotations

import dataclasses
import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from embodied_env.contract.bounded_files import MOST_DATA_BYTES, read_file
from embodied_env.contract.contract_schema import ContractFields

C = TypeVar("C", bound=ContractFields)

EMBEDDED = ("mujoco", "mujoco_ros")  # the backends whose profiles name a MuJoCo model
_FOLDERS = ("meshdir", "texturedir", "assetdir")


def with_model_hashes(contract: C) -> C:
    """Return a trusted `contract` whose profiles have the hashes of their files.

    They are ``model_sha256`` and ``identified.sha256``. A hash that the contract gives stays. Shipped models are known
    by their name.
    """
    profiles = dict(contract.backends)
    for name in EMBEDDED:
        profile: Mapping[str, object] = profiles.get(name, {})
        if isinstance(model := profile.get("model"), str) and "model_sha256" not in profile:
            with suppress(OSError, ValueError):  # a shipped model, or an error of the backend
                profile = {**profile, "model_sha256": model_sha256(contract.resolve_path(model))}
        identified = profile.get("identified")
        if isinstance(identified, Mapping) and isinstance(file := identified.get("file"), str):
            with suppress(OSError, ValueError):  # an error of the backend
                found = hashlib.sha256(read_file(contract.resolve_path(file))).hexdigest()
                profile = {**profile, "identified": {"sha256": found, **identified}}
        if name in profiles:
            profiles[name] = profile
    return contract if profiles == contract.backends else dataclasses.replace(contract, backends=profiles)


def model_sha256(file: Path) -> str:
    """Return the SHA-256 (hex) of a model's regular files by content, or raise OSError."""
    digest = hashlib.sha256()
    for each in model_files(file):
        digest.update(hashlib.sha256(read_file(each, most_bytes=MOST_DATA_BYTES)).digest())
    return digest.hexdigest()


def model_files(main: Path) -> list[Path]:
    """Return a model and the existing files that it names, or raise OSError without it.

    The files are in the order of the text. MuJoCo looks for a file from the folder of the model, of the file that names
    it, or of the compiler's settings. If there are several candidates, all are returned.
    """
    documents, assets, folders = [main], list[tuple[Path, str]](), [main.parent]
    for document in documents:  # grows
        with suppress(ET.ParseError):  # reported when the model is compiled
            for element in ET.fromstring(read_file(document, most_bytes=MOST_DATA_BYTES)).iter():  # noqa: S314 - own model
                if element.tag == "compiler":
                    folders += [main.parent / element.get(key, "") for key in _FOLDERS]
                for name in (value for key, value in element.items() if key.startswith("file")):
                    assets += [(document.parent, name), (document.parent, Path(name).name)]
                    if element.tag in ("include", "model"):
                        found, known = (document.parent / name, main.parent / name), {d.resolve() for d in documents}
                        documents += [each for each in found if each.is_file() and each.resolve() not in known]
    paths = (base / name for folder, name in assets for base in (folder, *folders))
    files = [*documents, *(path for path in paths if path.exists() and not path.is_dir())]
    return list({path.resolve(): path for path in files}.values())
