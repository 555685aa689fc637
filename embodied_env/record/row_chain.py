"""The hash chain of the rows of a run, in which each row has the hash of the previous one.

The first row has the hash of the run's name, start, contract and backend. Arrays are covered by the hashes in the rows.
The hash of the last row is the head of the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypedDict

from embodied_env.record.row_types import RESET, TRANSITION

PREVIOUS, LOG_TIME = "previous_sha256", "log_time_ns"
"""The fields of a row that make the chain."""

_STATED = ("run_id", "started_utc", "backend")


class ChainRecord(TypedDict):
    """``chain`` of a manifest."""

    head: str  # SHA-256 of the last row, or of the start without rows
    rows: int
    resets: int


def start_of_chain(manifest: Mapping[str, Any]) -> str:
    """Return the hash in the first row of a run.

    It is computed from name, start, backend and contract as JSON.
    """
    contract = manifest.get("contract")
    fingerprint = contract.get("fingerprint") if isinstance(contract, dict) else None
    stated = [*(manifest.get(key) for key in _STATED), fingerprint]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()


def describe_chain(manifest: Mapping[str, Any]) -> str:
    """Return head and counts in words, as a finished manifest states them."""
    if (chain := manifest.get("chain")) is None:
        return "no head: the run was not closed"
    return f"head {chain['head']}, {chain['rows']} rows, {chain['resets']} resets"


class RowChain:
    """Makes the chain of rows that are written, and checks that of rows that are read.

    Attributes:
        head: hash of the last row, or the start without rows; "" if the rows have no chain.
        start: hash that the first row has; "" without rows, or in a run from before there were chains.
        rows: how many there are.
        resets: how many of them are resets.
        problem: first row that does not fit, or "".
    """

    def __init__(self, start: str = "") -> None:
        self.head = self.start = start
        self.rows = self.resets = 0
        self.problem = ""

    def link(self, data: bytes, log_time_ns: int) -> bytes:
        """Return a row, as JSON, with the fields that link it to the previous one."""
        return b'%b,"%b":"%b","%b":%d}' % (
            data[:-1], PREVIOUS.encode(), self.head.encode(), LOG_TIME.encode(), log_time_ns
        )  # fmt: skip

    def add(self, data: bytes, *, is_reset: bool) -> None:
        """Add a linked row."""
        self.head = hashlib.sha256(data).hexdigest()
        self.rows += 1
        self.resets += is_reset

    def check(self, row: Any, data: bytes, log_time_ns: int | None, schema: str) -> None:  # noqa: ANN401 - JSON types
        """Add a row that was read, with the time of its message and schema of its topic.

        The row is given as JSON types and as text. A time of None means that the message has two.
        """
        fields = row if isinstance(row, dict) else {}
        previous = fields.get(PREVIOUS, "")
        if not self.rows:
            self.start = self.head = previous if isinstance(previous, str) else ""
        where = f"row {self.rows}"
        if previous != (self.head if self.start else ""):
            self.problem = self.problem or f"{where} does not have the hash of the row before it"
        elif self.start and fields.get(LOG_TIME) != log_time_ns:
            self.problem = self.problem or f"{where} does not have the log time of its message"
        elif self.start and fields.get("schema") in {RESET, TRANSITION} - {schema}:
            self.problem = self.problem or f"{where} does not have the schema of its topic"
        self.add(data, is_reset=fields.get("schema") == RESET)
        if not self.start:
            self.head = ""

    def as_json(self) -> ChainRecord:
        """Return head and counts, for the manifest."""
        return {"head": self.head, "rows": self.rows, "resets": self.resets}
