"""Write a PyTorch perceptron as an ONNX file for a policy address of the kind ``onnx``.

``embodied-env evaluate --policy onnx:FILE`` runs it.

The operators are written one by one, which needs no package but onnx. For another network, such as one with images, use
``torch.onnx.export`` (package onnxscript) with the names `INPUT` and `OUTPUT` and a dynamic batch axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

INPUT, OUTPUT = "observation", "action"
"""A model of Stable-Baselines3 has the same names, so that one policy file serves both."""

OPSET, IR_VERSION = 17, 8
"""Versions that every onnxruntime in use reads."""


def save_onnx(layers: nn.Sequential, file: Path) -> None:
    """Write layers of the types Linear, ReLU, Tanh and Hardtanh, with a batch of any size."""
    value, nodes, constants = INPUT, [], []
    for number, layer in enumerate(layers):
        operator, parameters, attributes = _operator(layer)
        named = {f"{name}_{number}": parameter.detach().cpu().numpy() for name, parameter in parameters.items()}
        constants += [numpy_helper.from_array(array, name) for name, array in named.items()]
        result = OUTPUT if number == len(layers) - 1 else f"layer_{number}"
        nodes.append(helper.make_node(operator, [value, *named], [result], **attributes))
        value = result
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    ends = _batch(INPUT, linear[0].in_features), _batch(OUTPUT, linear[-1].out_features)
    graph = helper.make_graph(nodes, "policy", [ends[0]], [ends[1]], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    onnx.save(model, file)


def _operator(layer: nn.Module) -> tuple[str, Mapping[str, Tensor], Mapping[str, Any]]:
    """Return operator, parameters and attributes of a layer."""
    match layer:
        case nn.Linear():
            return "Gemm", {"weight": layer.weight, "bias": layer.bias}, {"transB": 1}
        case nn.Hardtanh():
            return "Clip", {"low": torch.tensor(layer.min_val), "high": torch.tensor(layer.max_val)}, {}
        case nn.ReLU():
            return "Relu", {}, {}
        case nn.Tanh():
            return "Tanh", {}, {}
    raise TypeError(f"unsupported layer: {layer} (expected Linear, ReLU, Tanh or Hardtanh); use torch.onnx.export")


def _batch(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
