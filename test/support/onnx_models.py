"""Small ONNX models that are encoded without the package onnx, with the field numbers of ``onnx.proto``."""

import struct

FLOAT, INT64, BOOL = 1, 7, 9


def varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def number(field, value):
    return varint(field << 3) + varint(value)


def part(field, value):
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name, shape, values, *, external=""):
    dims = b"".join(number(1, length) for length in shape)
    if external:
        where = part(13, part(1, "location") + part(2, external))
        return dims + number(2, FLOAT) + part(8, name) + where + number(14, 1)
    return dims + number(2, FLOAT) + part(8, name) + part(9, struct.pack(f"<{len(values)}f", *values))


def info(name, element, shape):
    lengths = (number(1, length) if isinstance(length, int) else part(2, length) for length in shape)
    dims = b"".join(part(1, length) for length in lengths)
    return part(1, name) + part(2, part(1, number(1, element) + part(2, dims)))


def node(operator, inputs, outputs, *, domain="", attributes=b""):
    named = b"".join(part(1, name) for name in inputs) + b"".join(part(2, name) for name in outputs)
    return named + part(4, operator) + attributes + (part(7, domain) if domain else b"")


def model(nodes, inputs, outputs, initializers=(), element=FLOAT):
    graph = b"".join(part(1, each) for each in nodes) + part(2, "policy")
    graph += b"".join(part(5, each) for each in initializers)
    graph += b"".join(part(11, info(each[0], element, each[1])) for each in inputs)
    graph += b"".join(part(12, info(each[0], element, each[1])) for each in outputs)
    return number(1, 8) + part(7, graph) + part(8, number(2, 17))


def linear(weights, *, name="observation", batch="n", external="", domain=""):
    """Return the model of ``action = observation @ weights``, (n_inputs, n_joints)."""
    rows, columns = weights.shape
    return model(
        [node("MatMul", [name, "weights"], ["action"], domain=domain)],
        [(name, (batch, rows))],
        [("action", (batch, columns))],
        [tensor("weights", (rows, columns), weights.ravel().tolist(), external=external)],
    )


def endless(weights):
    """Return the model of `linear` whose action passes a loop of 2**62 rounds."""
    rows, columns = weights.shape
    body = part(1, node("Identity", ["go"], ["on"])) + part(1, node("Identity", ["a"], ["b"])) + part(2, "body")
    body += part(11, info("i", INT64, ())) + part(11, info("go", BOOL, ())) + part(11, info("a", FLOAT, ("n", columns)))
    body += part(12, info("on", BOOL, ())) + part(12, info("b", FLOAT, ("n", columns)))
    rounds = number(2, INT64) + part(8, "rounds") + part(9, struct.pack("<q", 2**62))
    return model(
        [
            node("MatMul", ["observation", "weights"], ["product"]),
            node(
                "Loop",
                ["rounds", "", "product"],
                ["action"],
                attributes=part(5, part(1, "body") + part(6, body) + number(20, 5)),
            ),
        ],
        [("observation", ("n", rows))],
        [("action", ("n", columns))],
        [tensor("weights", (rows, columns), weights.ravel().tolist()), rounds],
    )


def chunked(*, name, size, length):
    """Return the model that repeats one input (n, size) as a chunk (n, length, size) scaled by the step."""
    scales = [float(step + 1) for step in range(length) for _ in range(size)]
    return model(
        [node("Unsqueeze", [name, "axis"], ["row"]), node("Mul", ["row", "scales"], ["action"])],
        [(name, ("n", size))],
        [("action", ("n", length, size))],
        [
            tensor("scales", (length, size), scales),
            number(1, 1) + number(2, INT64) + part(8, "axis") + part(9, struct.pack("<q", 1)),
        ],
    )
