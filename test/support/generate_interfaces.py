"""Build a package of message types from its definitions, with the generators of the wheels and gcc only.

    python generate_interfaces.py DEFINITIONS/PACKAGE OUT

`OUT` on ``sys.path`` then gives the package. Parsing and compiling take the time, so each
definition is read once for all generators, and each library is one file for the compiler.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

PREFIXES = [Path(place) for place in [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix] if place]
DEPENDENCIES = (
    "builtin_interfaces", "std_msgs", "geometry_msgs", "sensor_msgs", "service_msgs", "action_msgs",
    "unique_identifier_msgs",
)  # fmt: skip
SUPPORTS = ("rosidl_typesupport_fastrtps_c", "rosidl_typesupport_introspection_c")
LIBRARIES = (
    "-lrosidl_runtime_c",
    "-lrosidl_typesupport_c",
    "-lrosidl_typesupport_fastrtps_c",
    "-lrosidl_typesupport_fastrtps_cpp",
    "-lrosidl_typesupport_introspection_c",
    "-l:libfastcdr.so.2",
    "-lrcutils",
)


def main(definitions: Path, out: Path) -> None:
    """Generate, compile and link the package named like the folder `definitions`, into `out`."""
    work = out / f"build_{definitions.name}"
    kinds = translate(definitions, work)
    generate(definitions.name, kinds, work, out)
    build(definitions.name, work, out)


def translate(definitions: Path, work: Path) -> dict[str, list[str]]:
    """Write the .idl of every .msg, .srv and .action, and return their paths inside the package by kind."""
    from rosidl_adapter import parser
    from rosidl_adapter.resource import expand_template

    readers = {
        "msg": parser.parse_message_string,
        "srv": parser.parse_service_string,
        "action": parser.parse_action_string,
    }
    kinds: dict[str, list[str]] = {}
    for file in sorted(definitions.rglob("*.*")):
        kind, relative = file.suffix[1:], file.relative_to(definitions)
        parsed = readers[kind](definitions.name, file.stem, file.read_text())
        data = {"pkg_name": definitions.name, "relative_input_file": relative.as_posix(), kind: parsed}
        expand_template(f"{kind}.idl.em", data, work / relative.with_suffix(".idl"), encoding="iso-8859-1")
        kinds.setdefault(kind, []).append(relative.with_suffix(".idl").as_posix())
    return kinds


def generate(package: str, kinds: dict[str, list[str]], work: Path, out: Path) -> None:
    """Write the sources of all libraries and the Python classes, two generators at a time."""
    everything = [path for paths in kinds.values() for path in paths]
    parse_once(work, everything)
    from rosidl_generator_c import generate_c
    from rosidl_generator_py import generate_py
    from rosidl_generator_type_description import generate_type_hash
    from rosidl_typesupport_c import generate_c as generate_dispatch
    from rosidl_typesupport_fastrtps_c import generate_typesupport_fastrtps_c
    from rosidl_typesupport_introspection_c import generate_c as generate_introspection

    of_others = [f"{name}:{share_folder(name)}" for name in DEPENDENCIES]
    hasher = "rosidl_generator_type_description"
    generate_type_hash(arguments(work, hasher, package, everything, include_paths=of_others))
    jobs: list[tuple[Callable[..., object], list[object]]] = [
        (generate_py, [arguments(work, "rosidl_generator_py", package, everything, out), ["rosidl_typesupport_c"]]),
        (generate_typesupport_fastrtps_c, [arguments(work, "rosidl_typesupport_fastrtps_c", package, everything)]),
        (generate_introspection, [arguments(work, "rosidl_typesupport_introspection_c", package, everything)]),
        (generate_dispatch, [arguments(work, "rosidl_typesupport_c", package, everything), list(SUPPORTS)]),
    ]
    for kind, paths in kinds.items():  # one kind at a time: a message and a service may have the same name
        hashes = [f"{path}:{(work / hasher / package / path).with_suffix('.json')}" for path in paths]
        name = f"rosidl_generator_c.{kind}"
        jobs.append((generate_c, [arguments(work, name, package, paths, type_description_tuples=hashes)]))
    for generator in ("rosidl_generator_c", *SUPPORTS):
        write_visibility_header(generator, package, work)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:  # they inherit the parsed definitions
        for done in [pool.submit(function, *given) for function, given in jobs]:
            done.result()
    (out / package / "__init__.py").write_text("")


def parse_once(work: Path, paths: list[str]) -> None:
    """Parse all definitions once, and hand them to the generators, which are imported after this."""
    from rosidl_parser import definition, parser

    read = parser.parse_idl_file
    known = {path: read(definition.IdlLocator(str(work), path)) for path in paths}
    parser.parse_idl_file = lambda locator: known[str(locator.relative_path)]


def write_visibility_header(generator: str, package: str, work: Path) -> None:
    from rosidl_cli.command.helpers import generate_visibility_control_file

    name = f"{generator}__visibility_control.h"
    template = share_folder(generator) / "resource" / f"{name}.in"
    target = work / generator / package / "msg" / name
    generate_visibility_control_file(package_name=package, template_path=template, output_path=target)


def arguments(work: Path, name: str, package: str, paths: list[str], into: Path | None = None, **more: object) -> str:
    """Write the argument file of a generator that writes to `into` or a new folder."""
    generator = name.partition(".")[0]
    target = (into or work / generator) / package
    for path in paths:
        (target / path).parent.joinpath("detail").mkdir(parents=True, exist_ok=True)
    file = work / f"{name}.json"
    content = {
        "package_name": package,
        "output_dir": str(target),
        "template_dir": str(share_folder(generator) / "resource"),
        "idl_tuples": [f"{work}:{path}" for path in paths],
        "target_dependencies": [],
        **more,
    }
    file.write_text(json.dumps(content))
    return str(file)


def share_folder(package: str) -> Path:
    found = [prefix / "share" / package for prefix in PREFIXES if (prefix / "share" / package).is_dir()]
    if not found:
        raise FileNotFoundError(f"no share folder of {package} under {[str(prefix) for prefix in PREFIXES]}")
    return found[0]


def build(package: str, work: Path, out: Path) -> None:
    """Compile one file per library and language, and link them."""
    described = sorted((work / "rosidl_generator_c").rglob("*__description.c"))  # these cannot share a file
    sources = {
        "core.c": [file for file in (work / "rosidl_generator_c").rglob("*.c") if file not in described],
        "dispatch.cpp": [*(work / "rosidl_typesupport_c").rglob("*.cpp")],
        "python.c": [*(out / package).rglob("*.c")],
        "rosidl_typesupport_fastrtps_c.cpp": [*(work / "rosidl_typesupport_fastrtps_c").rglob("*.cpp")],
        "rosidl_typesupport_introspection_c.c": [*(work / "rosidl_typesupport_introspection_c").rglob("*.c")],
    }
    units = [work / f"{file.parent.parent.name}_{file.name}" for file in described]  # a message and an action may agree
    for unit, file in zip(units, described, strict=True):
        unit.write_text(f'#include "{file}"\n')
    for name, parts in sources.items():
        (work / name).write_text("".join(f'#include "{part}"\n' for part in sorted(parts)))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda files: compile_all(work, files), [*([work / name] for name in sources), units]))
    for support in SUPPORTS:
        name = f"lib{package}__{support}.so"
        link(out / package / name, [work / f"{support}.o"], support, f"-Wl,-soname,{name}")
    link(
        out / package / f"{package}_s__rosidl_typesupport_c{sysconfig.get_config_var('EXT_SUFFIX')}",
        [work / f"{name}.o" for name in ("core", "dispatch", "python", *(unit.stem for unit in units))],
        "rosidl_typesupport_c",
        f"-L{out / package}",
        *(f"-l{package}__{support}" for support in SUPPORTS),
    )


def compile_all(work: Path, files: list[Path]) -> None:
    roots = [work / generator for generator in (*SUPPORTS, "rosidl_generator_c", "rosidl_typesupport_c")]
    places = [place for prefix in PREFIXES for place in (prefix / "include", *sorted((prefix / "include").glob("*")))]
    includes = [*roots, *places, sysconfig.get_path("include"), np.get_include()]
    compiler = "g++" if files[0].suffix == ".cpp" else "gcc"
    run(compiler, "-O0", "-w", "-fPIC", *(f"-I{place}" for place in includes), "-c", *map(str, files), folder=work)


def link(target: Path, objects: list[Path], support: str, *more: str) -> None:
    """Link a library against those of the packages it depends on."""
    folders = [prefix / "lib" for prefix in PREFIXES]
    needed = [
        f"-l{name}__{kind}" for kind in (support, "rosidl_generator_c", "rosidl_generator_py") for name in DEPENDENCIES
    ]
    paths = [f"-L{folder}" for folder in folders] + [f"-Wl,-rpath,{folder}" for folder in ("$ORIGIN", *folders)]
    given = ["-o", str(target), *map(str, objects), *paths, *more, *needed, *LIBRARIES]
    run("g++", "-shared", "-Wl,--no-as-needed", *given, folder=target.parent)


def run(*command: str, folder: Path) -> None:
    """Run a compiler, and raise a RuntimeError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[:4000]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
