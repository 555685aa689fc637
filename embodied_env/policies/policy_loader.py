"""Load a policy by its address.

An address is ``NAME[:LOCATION][#PART][?OPTION=VALUE[&OPTION=VALUE]...]``, and a location on a server is
``//host[:port][/path]``. The page `docs/reference/policies.md` has the rules with examples.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.value_checks import one_of
from embodied_env.core.plugin_loading import foreign_code, load_plugin
from embodied_env.core.policy import Policy, PolicyIdentity, as_policy
from embodied_env.errors import UsageError, did_you_mean
from embodied_env.plugins.plugin_lookup import Plugin, find_plugin, plugin_names
from embodied_env.plugins.plugin_table import ADDRESSES, BUILT_IN
from embodied_env.policies.onnx_model import find_onnx
from embodied_env.policies.policy_file import SUFFIX, read_policy_file
from embodied_env.policies.policy_file_interface import PolicyFileInterface
from embodied_env.policies.policy_model import ArrayInterface, ContractModel, PolicyModel, connect

_Takes = Literal["contract", "location", "both"]
"""Arguments of a factory of policies: ``NAME``, a model at ``NAME:LOCATION``, or a policy at ``NAME:LOCATION``."""

_NAME_END = re.compile(r"[:#?]|$")
_OPTIONS = re.compile(r"\?(?=[A-Za-z_]\w*=)")
_NOT_IN_ADDRESSES = ("trust", "api_key", "api_token")  # an address is recorded, and may come from a file


def load_policy(
    address: str,
    contract: str | Path | Contract,
    *,
    policy_file: str | Path | None = None,
    trust: bool = False,
    **options: Any,  # noqa: ANN401 - of the format
) -> Policy:
    """Return a new policy object for one environment, slot or agent.

    Args:
        address: a form of `ADDRESSES`, or ``name`` and ``name:location`` of another package in the entry-point group
            ``embodied_env.policies`` (`docs/reference/policies.md`).
        contract: name or file of the contract of its observations and actions, or the contract.
        policy_file: maps inputs and outputs of a model to the contract; None: the file ``NAME.policy.yaml`` next
            to ``NAME.onnx``, if there is one, else those of the contract.
        trust: load a format that executes code when it is read, such as pickle.
        **options: options of the format; ``scripted``: `backend`, whose profile gives the robot model; ``onnx``:
            `providers` and `threads` of onnxruntime; ``sb3``: `deterministic`; ``lerobot``: `device`; those of servers
            are in `docs/reference/policies.md`.

    Raises:
        UsageError: for an unknown address or option, a format that needs `trust`, or a policy that does not fit the
            contract.
        MissingDependencyError: if the library of the format is not installed.
    """
    contract, parsed = load_contract(contract), parse_address(address)
    name, location, given = parsed.name, parsed.location, {**options, **parsed.options}
    remedy, takes = _remedy(address), None
    if (plugin := find_plugin("policies", name)) is not None:
        factory, takes = _load(plugin)
    if policy_file is not None and takes != "location" and not remedy:
        raise UsageError(f"policy file for {address!r}: {str(policy_file)!r} (expected a model: {_formats()})")
    if plugin is not None and (location is None) == (takes == "contract"):
        if takes == "location":
            return _load_connected(parsed, contract, policy_file, {"trust": trust, **given})
        arguments, given = (
            ((contract,), given) if takes == "contract" else ((location, contract), {"trust": trust, **given})
        )
        made = _call(address, plugin, factory, arguments, given)
        return as_policy(made, PolicyIdentity(name=address, format=name))
    if remedy or not (name and location):
        names = plugin_names("policies")
        others = (f"{each}:..." for each in names[len(BUILT_IN["policies"]) :])
        expected = f"expected one of: {', '.join((*ADDRESSES, *others))}; group embodied_env.policies"
        raise UsageError(f"unknown policy {address!r} ({expected}){remedy or did_you_mean(address, names)}")
    if given:
        raise UsageError(f"unknown option of the policy {address!r}: {next(iter(given))!r} (it has no options)")
    return _imported(address)


def _load(plugin: Plugin) -> tuple[Callable[..., Any], _Takes]:
    """Return the factory of a plug-in and its kind of arguments, or raise UsageError."""
    factory = cast("Callable[..., Any]", load_plugin(plugin, f"the policy {plugin.name!r}"))
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"loader of the policy {plugin.name!r} is not callable: {factory!r:.80}") from error
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return factory, "contract" if names == ["contract"] else "location" if len(names) == 1 else "both"


def _load_connected(
    address: PolicyAddress, contract: Contract, policy_file: str | Path | None, options: Mapping[str, Any]
) -> Policy:
    """Return the policy of a model, by its policy file or by the names of the contract."""
    policy_file = find_policy_file(address.text) if policy_file is None else policy_file
    mapped = None if policy_file is None else PolicyFileInterface(read_policy_file(policy_file), contract)
    model = _load_model(address, options)
    try:
        if mapped is None and isinstance(model, ContractModel):
            model.check_contract(contract)
        interface = mapped or ArrayInterface(model, contract)
        interface.check(model)
    except BaseException:
        model.close()
        raise
    return connect(model, interface)


def load_model(address: str, *, trust: bool = False, **options: Any) -> PolicyModel:  # noqa: ANN401 - of the format
    """Return the model at an address, or raise as `load_policy`."""
    parsed = parse_address(address)
    return _load_model(parsed, {"trust": trust, **options, **parsed.options})


def _load_model(address: PolicyAddress, options: Mapping[str, Any]) -> PolicyModel:
    """Return the model at an address, called with `options`, those of the address included."""
    text, plugin = address.text, find_plugin("policies", address.name)
    factory, takes = (None, None) if plugin is None else _load(plugin)
    if plugin is None or factory is None or takes != "location":
        remedy = _remedy(text) or "; any other policy needs a contract"
        raise UsageError(f"unknown model {text!r} (expected one of: {_formats()}){remedy}")
    if not address.location:
        form = next((each for each in ADDRESSES if each.startswith(f"{address.name}:")), f"{address.name}:LOCATION")
        raise UsageError(f"incomplete policy address {text!r} (expected {form})")
    if "part" in address.options:
        raise UsageError(f"unknown option of the policy {text!r}: 'part' (expected #PART before the options)")
    if address.part is not None:
        options = {**options, "part": address.part}
    model: PolicyModel = _call(text, plugin, factory, (address.location,), options)
    if address.options:
        model.identity = replace(model.identity, name=text)
    return model


def find_policy_file(address: str) -> Path | None:
    """Return the policy file next to the model, or in its directory, or None without one."""
    parsed = parse_address(address)
    format_name, location = parsed.name, parsed.location or ""
    if any(form.startswith(f"{format_name}://") for form in ADDRESSES):
        return None
    path = find_onnx(location) if format_name == "onnx" else Path(location)
    try:
        file = path / f"policy{SUFFIX}" if path.is_dir() else path.with_name(path.stem + SUFFIX)
        return file if os.path.lexists(file) else None  # one that cannot be read is refused, not ignored
    except (OSError, ValueError):  # not a path
        return None


def _remedy(address: str) -> str:
    """Return what to write instead of a path, a URL or a Python file, or ""."""
    name, separator, location = address.partition(":")
    if not separator and name.endswith((".yaml", ".yml")):
        return "; a policy file goes with the address of its model"
    meant = ""
    if not separator and (format_name := {".onnx": "onnx", ".zip": "sb3"}.get(Path(name).suffix)):
        meant = f"{format_name}:{name}"
    elif name in ("ws", "http") and location.startswith("//"):
        meant = f"openpi:{location}"
    elif separator and name.endswith(".py"):
        meant = f"{Path(name).stem}:{location}"
    return meant and f"; did you mean {meant!r}?"


def _formats() -> str:
    return ", ".join(f"{name}:..." for name in plugin_names("policies") if name not in ADDRESSES)


def policy_accepts(address: str, option: str) -> bool:
    """Return whether the policy at an address without a location has the option."""
    parsed = parse_address(address)
    plugin = None if parsed.location is not None else find_plugin("policies", parsed.name)
    return plugin is not None and option in inspect.signature(_load(plugin)[0]).parameters


def _call(
    address: str, plugin: Plugin, make: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:  # noqa: ANN401 - a policy or a model
    """Call a factory with `options` that it has, or raise UsageError for another one."""
    parameters = inspect.signature(make).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in known and option != "trust":
                raise UsageError(f"unknown option of the policy {address!r}: {one_of(option, known)}")
        options = {name: value for name, value in options.items() if name in known}
    guard = foreign_code(lambda what: UsageError(f"policy {address!r} cannot be made: {what}"))
    with nullcontext() if plugin.is_built_in else guard:
        return make(*arguments, **options)


# ------------------------------------------------------------------------------------------------------ Python policies


def _imported(address: str) -> Policy:
    module_name, _, expression = address.partition(":")
    name, arguments, options = _parse_call(address, expression)
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.append(os.getcwd())  # noqa: PTH109 - as for python -m
    with foreign_code(lambda what: UsageError(f"cannot import policy {address!r}: {what}")):
        module = importlib.import_module(module_name)
        found = getattr(module, name)
    if arguments is not None:
        with foreign_code(lambda what: UsageError(f"policy {address!r} cannot be made: {what}")):
            found = found(*arguments, **options)
    identity = PolicyIdentity(name=address, format="python", sha256=_source_sha256(module))
    return as_policy(found, identity)


def _parse_call(address: str, expression: str) -> tuple[str, list[Any] | None, dict[str, Any]]:
    """Return name and arguments of ``factory(literals)``, or name and None, unevaluated."""
    if expression.isidentifier():
        return expression, None, {}
    with suppress(SyntaxError, ValueError, MemoryError, RecursionError):  # of untrusted text
        call = ast.parse(expression, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and all(key.arg for key in call.keywords):
            options = {str(key.arg): ast.literal_eval(key.value) for key in call.keywords}
            return call.func.id, [ast.literal_eval(value) for value in call.args], options
    expected = "expected a name, or a call with literals such as make(3, gain=0.5)"
    raise UsageError(f"invalid policy {address!r}: {expression!r} ({expected})")


def _source_sha256(module: Any) -> str | None:  # noqa: ANN401 - a module
    with suppress(TypeError, OSError):  # no source
        file = inspect.getsourcefile(module)
        return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAddress:
    """The parts of the address `text`."""

    text: str
    name: str  # a format, or a module of the user
    location: str | None = None  # a file, a server, or an expression of the module; None: without ":"
    part: str | None = None  # only of a format whose form has one, such as the episode of a run
    options: Mapping[str, Any]  # Python literals, any other value as text


def parse_address(address: str) -> PolicyAddress:
    """Return the parts of an address, or raise UsageError for a repeated or forbidden option."""
    if not isinstance(address, str):
        raise UsageError(f"invalid policy address {address!r:.80} (expected text, such as 'onnx:FILE')")
    first = _NAME_END.search(address)
    name = address[: first.start()] if first else address
    rest = address[len(name) :]
    is_python = rest.startswith(":") and find_plugin("policies", name) is None
    begin = _OPTIONS.search(rest, rest.rfind(")") + 1 if is_python else 0)  # a "?" in a literal is a character of it
    body, query = (rest, "") if begin is None else (rest[: begin.start()], rest[begin.end() :])
    part = None
    if "#" in body and any(form.startswith(f"{name}:") and "#" in form for form in ADDRESSES):
        body, _, part = body.rpartition("#")
    location = body[1:] if body.startswith(":") else None
    if location is None and body:  # neither a name nor a location
        name = name + body
    return PolicyAddress(text=address, name=name, location=location, part=part, options=_read_options(query, name))


def parse_server(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of a server's URL, or raise UsageError for another form."""
    try:
        url = urlsplit(address)
        host, port = url.hostname, default_port if url.port is None else url.port
    except ValueError:
        host, port = None, 0
    if not host or not port or url.path.strip("/") or url.query or url.fragment or url.username is not None:
        scheme = address.partition(":")[0]
        expected = f"expected {scheme}://host:port, for example {scheme}://127.0.0.1:{default_port}"
        raise UsageError(f"invalid address of a policy server: {address!r} ({expected})")
    return host, port


def _read_options(query: str, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        if key in _NOT_IN_ADDRESSES:
            remedy = "pass it as an argument, or as the command line or environment variable of the format"
            raise UsageError(f"unknown option of the address of a policy {name!r}: {key!r}; {remedy}")
        if key in options:
            raise UsageError(f"option {key!r} given twice in the address of a policy {name!r} (expected once)")
        try:
            options[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = text
    return options
