"""Load contract blocks, the keys under ``blocks.<plug-in>`` that this plug-in owns.

Reading, showing and fingerprinting a contract take a block as plain data. Using the contract takes the plug-in.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.typed_values import parse_as
from embodied_env.core.plugin_loading import foreign_code, load_plugin
from embodied_env.errors import ContractError
from embodied_env.plugins.plugin_lookup import get_plugin

FINGERPRINT = "fingerprint"
"""Key of every block that states whether the others are part of the fingerprint (default: true)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContractBlock:
    """The declaration of a block, named by its entry point in ``embodied_env.contract_blocks``."""

    schema: type  # a dataclass of the keys, parsed as strictly as those of a contract
    in_fingerprint: bool = True  # False: every contract with the block has ``fingerprint: false``
    action_stage: str | None = None  # name of the stage that every environment of such a contract has


def declared_block(contract: Contract, name: str) -> ContractBlock:
    """Return the declaration of a block, or raise ContractError without its plug-in."""
    path = f"blocks.{name}"

    def error_of(problem: str) -> ContractError:
        return ContractError(path, problem, source=contract.source)

    declared = load_plugin(get_plugin("contract_blocks", name, error=error_of), f"the block {name!r}", error=error_of)
    if not isinstance(declared, ContractBlock) or not dataclasses.is_dataclass(declared.schema):
        raise error_of(f"invalid declaration: {declared!r:.80} (expected a ContractBlock with a dataclass)")
    return declared


def load_block(contract: Contract, name: str) -> Any:  # noqa: ANN401 - the plug-in's dataclass
    """Return a block as its plug-in's dataclass, or raise ContractError for an invalid one."""
    declared, path = declared_block(contract, name), f"blocks.{name}"
    if name not in contract.blocks:
        raise ContractError(path, "missing block (expected the keys of its plug-in)", source=contract.source)
    keys = dict(contract.blocks[name])
    if keys.pop(FINGERPRINT, True) is not declared.in_fingerprint:
        expected = f"expected {str(declared.in_fingerprint).lower()}, as its plug-in declares"
        raise ContractError(f"{path}.{FINGERPRINT}", f"wrong value ({expected})", source=contract.source)
    with foreign_code(lambda what: ContractError(path, what, source=contract.source)):
        return parse_as(declared.schema, keys, path=path, source=contract.source)


def check_blocks(contract: Contract) -> tuple[str, ...]:
    """Return the action stages of the blocks, or raise ContractError for an invalid block."""
    for name in contract.blocks:
        load_block(contract, name)
    stages = (declared_block(contract, name).action_stage for name in contract.blocks)
    return tuple(stage for stage in stages if stage is not None)
