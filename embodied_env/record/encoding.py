"""The JSON text of a row, made of what `kept` copied in one pass: `plain` would build it all a second time before."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np

from embodied_env.record.arrays import Store, stands_apart
from embodied_env.record.rows import Row, Settled, plain, strict

_DOUBLE = 8  # bytes


def encodable(text: str) -> str:
    """Return JSON in ASCII with ``?`` for lone surrogates, which no reader of UTF-8 accepts."""
    if "\\ud" not in text:
        return text
    replaced = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    return json.dumps(json.loads(replaced), separators=(",", ":"))


class RowEncoder:
    """Writes rows as JSON, in any thread: ``encode(row, store)`` is the text of `strict` of it, byte for byte.

    Containers and numbers of a row must be such as JSON and `plain` write alike: what `kept`, `kept_action` and the
    functions of `embodied_env.record.rows` return.
    """

    def __init__(self) -> None:
        """Prepare."""
        self._lock = threading.Lock()  # of the store
        self._store: Store | None = None
        encoder = json.JSONEncoder(
            allow_nan=False, check_circular=False, separators=(",", ":"), default=self._in_types_of_json
        )
        self._text_of = encoder.encode

    def encode(self, row: Row, store: Store | None = None) -> str:
        """Return the text of `row`; it is ASCII. Images and other large arrays go to `store`."""
        with self._lock:
            self._store = store
            try:
                return encodable(self._text_of(row))
            except (ValueError, TypeError, RecursionError):  # mostly a NaN, which becomes null
                return encodable(self._text_of(strict(row, store)))

    def _in_types_of_json(self, value: Any) -> Any:  # noqa: ANN401 - what JSON does not know
        if type(value) is np.ndarray and value.itemsize <= _DOUBLE:
            return value.tolist() if self._store is None or not stands_apart(value) else self._store(value)
        return value.value if type(value) is Settled else plain(value, self._store)
