"""Decode the messages of a topic by a byte layout that is inferred from one of them.

Messages of a topic mostly have the same length, names and counts; only their numbers change. The layout of one then
fits the next, as long as everything else in it is equal, byte for byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from embodied_env.ros.transport.byte_layout import HEADER_BYTES, ByteLayout, Message, infer_layout, uses_byte_layouts
from embodied_env.ros.transport.cdr import from_cdr, to_cdr

_STAMPS = struct.Struct(">iI"), struct.Struct("<iI")  # big-endian, little-endian
_MAX_LAYOUTS = 16  # per topic; rclpy decodes topics whose messages keep changing


@dataclass(slots=True)
class RawMessage:
    """Message of a raw subscription as bytes that are decoded on request."""

    data: bytes  # as received; trailing bytes are possible
    kind: Any  # the message class
    layout: ByteLayout | None = None  # if one fits

    def decoded(self) -> Message:
        """Return a new message or a new namespace with its fields, whose arrays may be read-only."""
        return from_cdr(self.data, self.kind) if self.layout is None else self.layout.view(self.data)

    def stamp_ns(self) -> int:
        """Return the stamp of the header, which must be the first field."""
        sec, nanosec = _STAMPS[self.data[1] & 1].unpack_from(self.data, HEADER_BYTES)
        return int(sec * 1_000_000_000 + nanosec)

    def to_cdr(self) -> bytes:
        """Return the bytes of the message without trailing ones (thread-safe)."""
        return to_cdr(self.decoded()) if self.layout is None else self.data[: self.layout.size]


def as_message(message: Message) -> Message:
    """Return a message for reading, whether its subscription is raw (`RawMessage.decoded`) or not."""
    return message.decoded() if isinstance(message, RawMessage) else message


class LayoutDecoder:
    """Decoder of the messages of one topic by a cached layout where it fits, or else by rclpy."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a generated type
        """`kind` is the message class."""
        self._kind = kind
        self._layout: ByteLayout | None = None
        self._layouts_left = _MAX_LAYOUTS if uses_byte_layouts() else 0

    def decode(self, data: bytes) -> RawMessage | None:
        """Return the message in `data`, or None for invalid bytes, which rclpy drops too."""
        layout = self._layout
        if layout is not None and layout.fits(data):
            return RawMessage(data, self._kind, layout)
        try:
            typed = from_cdr(data, self._kind)
        except Exception:  # noqa: BLE001 - rclpy has no public name for its RMWError
            return None
        if self._layouts_left:
            self._layouts_left -= 1
            self._layout = infer_layout(typed, data) or layout
        return RawMessage(data, self._kind)
