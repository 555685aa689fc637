"""SDF of strangers is read as data, within limits."""

import time
from pathlib import Path

import pytest
from own_worlds import GROUND, joint, world

from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init import sdf_world
from embodied_env.extensions.contract_init.sdf_interfaces import find_interfaces
from embodied_env.extensions.contract_init.sdf_world import read_world

DEEP = "<model name='m'>" * 100 + "</model>" * 100
MANY = "<link/>" * (2**17 + 1)
BOMB = '<!DOCTYPE sdf [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
ITSELF = "<include><uri>world.sdf</uri></include>"


def written(folder: Path, text: str) -> Path:
    file = folder / "world.sdf"
    file.write_text(text)
    return file


HOSTILE = {
    "10 MB": (world("w", "<!--" + "x" * 10_000_000 + "-->"), "expected at most 8388608 bytes"),
    "entities": (BOMB + '<sdf><world name="w">&b;</world></sdf>', "<!DOCTYPE sdf> (expected none)"),
    "depth": (world("w", DEEP), "expected at most 64 levels"),
    "elements": (world("w", f"<model name='m'>{MANY}</model>"), "expected at most 131072"),
    "newline in a model": (world("w", "<model name='a&#10;b'/>"), r"sdf.model: invalid name 'a\nb'"),
    "newline in a joint": (
        world("w", f"<model name='m'>{joint('a&#10;rm -rf')}</model>"),
        r"sdf.model[m].joint: invalid name 'a\nrm -rf'",
    ),
    "name of a world": (world("a/b"), "sdf.world: name 'a/b' (expected letters, digits and _"),
    "cycle": (world("w", f"<model name='m'>{ITSELF}</model>"), "'world.sdf' includes itself"),
    "two models of a name": (world("w", GROUND), "sdf.model: name 'ground_plane' (expected unique)"),
    "two joints of a name": (
        world("w", f"<model name='m'>{joint('j')}{joint('j', high=90)}</model>"),
        "sdf.model[m].joint: name 'j' (expected unique)",
    ),
    "no world": ("<sdf><model name='m'/></sdf>", "no <world>"),
    "another root": ("<robot name='w'/>", "root element <robot> (expected <sdf>)"),
    "NaN": (world("w", physics="</physics><physics>").replace("0.001", "nan", 1), "max_step_size: 'nan'"),
    "no step": (world("w").replace("0.001", "0"), "sdf.physics.max_step_size: 0.0"),
    "negative step": (world("w").replace("0.001", "-1"), "max_step_size: -1.0 (expected > 0 s)"),
    "type of a joint": (
        world("w", f"<model name='m'>{joint('j', kind='spring')}</model>"),
        "sdf.joint[j].type: 'spring'",
    ),
    "device": (world("w", "<include><uri>file:///dev/zero</uri></include>"), "not a regular file: '/dev/zero'"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_sdf_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    text, problem = HOSTILE[kind]
    begun_s = time.process_time()
    with pytest.raises(ContractError) as caught:
        read_world(written(tmp_path, text))
    assert problem in str(caught.value)
    assert time.process_time() - begun_s < 10.0


def test_includes_that_multiply_end_at_their_number(tmp_path: Path) -> None:
    for level in range(8):
        include = f"<include><uri>level_{level + 1}.sdf</uri></include>" * 10
        (tmp_path / f"level_{level}.sdf").write_text(f"<sdf><model name='m{level}'>{include}</model></sdf>")
    with pytest.raises(ContractError, match=r"sdf\.include: too many includes \(expected at most 200\)"):
        read_world(written(tmp_path, world("w", "<include><uri>level_0.sdf</uri></include>")))


def test_a_model_of_very_many_parts_is_refused(tmp_path: Path) -> None:
    joints = "".join(joint(f"j{number}") for number in range(1001))
    model = read_world(written(tmp_path, world("w", f"<model name='m'>{joints}</model>"))).models["m"]
    with pytest.raises(
        ContractError, match=r"sdf\.model\[m\]: 1001 joints, sensors and plug-ins \(expected at most 1000\)"
    ):
        find_interfaces(model)


def test_reading_ends_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdf_world, "_MOST_S", -1.0)
    with pytest.raises(ContractError, match="takes too long to read"):
        read_world(written(tmp_path, world("w")))


@pytest.mark.parametrize("uri", ["a/" * 5000, "a" * 300])
def test_an_include_whose_path_is_too_long_is_a_file_that_does_not_exist(uri: str, tmp_path: Path) -> None:
    found = read_world(written(tmp_path, world("w", f"<include><uri>{uri}</uri></include>")))
    assert [what.endswith(": no such file") for what, _ in found.gaps] == [True]


def test_models_are_found_below_the_resource_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "elsewhere" / "arm" / "model.sdf"
    model.parent.mkdir(parents=True)
    model.write_text(f"<sdf><model name='arm'>{joint('j')}</model></sdf>")
    file = written(tmp_path, world("w", "<include><uri>model://arm</uri></include>"))
    found = read_world(file)
    assert found.models.keys() == {"ground_plane"}
    assert found.gaps == [("the model model://arm: no such file", "correct the URI, or set GZ_SIM_RESOURCE_PATH")]
    monkeypatch.setenv("GZ_SIM_RESOURCE_PATH", str(model.parents[1]))
    assert read_world(file).models["arm"].joints["j"].position == (-2.0, 2.0)


def test_limits_beyond_those_of_sdf_are_none(tmp_path: Path) -> None:
    joints = joint("wheel", low=-1e16, high="inf", speed="inf") + joint("mount", kind="fixed")
    found = read_world(written(tmp_path, world("w", f"<model name='m'>{joints}</model>"))).models["m"].joints
    assert found.keys() == {"wheel"}
    assert (found["wheel"].position, found["wheel"].velocity, found["wheel"].is_continuous) == (None, None, True)


def test_only_an_include_merges_its_model(tmp_path: Path) -> None:
    nested = f"<model name='m'><model name='n' merged='true' merge='true'>{joint('j')}</model></model>"
    model = read_world(written(tmp_path, world("w", nested))).models["m"]
    assert (list(model.joints), [each.name for each in model.nested]) == ([], ["n"])
    assert model.nested[0].scope == "world/w/model/m/model/n"
