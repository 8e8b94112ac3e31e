"""Where tensors lie in an ONNX graph, and what the nodes that take them tell about them.

A weight in fewer bits lies under another name, and nodes give it back to the graph as floats under its own name:

* 8 bits: ``X_quantized``, int8, and ``X_scale``, one for each slice along the first axes (the last matrices of stacked
  ones have one for each row): ``X = Cast(X_quantized) * X_scale``. A matrix that its product wants as (in, out) is
  stored as (out, in), so that outputs have scales, and what comes out is transposed;
* 16 bits: ``X_half``: ``X = Cast(X_half)``.

Runtimes carry such constant nodes out once, when they load a file; DequantizeLinear, the operator for this, would be
carried out at every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .roles import Role

_GRAPH = 5  # the type of an attribute that holds a graph
_MAX_PREFIX = 1000  # of names; graphs that are nested deeper than that are no model
_ROLES: dict[tuple[str, int], Role] = {
    ("MatMul", 0): "linear", ("MatMul", 1): "linear", ("Gemm", 0): "linear", ("Gemm", 1): "linear",
    ("Conv", 1): "conv", ("ConvTranspose", 1): "conv", ("Gather", 0): "embedding",
    **{(cell, position): "linear" for cell in ("LSTM", "GRU", "RNN") for position in (1, 2)},
}  # fmt: skip
_UNPACKING = (("_quantized", ("Mul", "Cast")), ("_quantized", ("Transpose", "Mul", "Cast")), ("_half", ("Cast",)))
_SAME_VALUES = ("Transpose", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")


@dataclass
class Place:
    """A tensor of ``graph``: ``proto`` is an initializer, or what ``constant``, a Constant node, holds.

    ``prefix`` is what comes before its name in names of the whole file. ``unpacked_by`` are the nodes that make floats
    of it, the last one under the name of the weight; ``floats`` is the number type that they make.
    """

    graph: Any
    proto: Any
    prefix: str
    constant: Any = None
    unpacked_by: tuple[Any, ...] = ()
    floats: int = 0

    @property
    def flipped(self) -> bool:
        """Whether it lies as (out, in) where the graph's nodes see (in, out)."""
        return bool(self.unpacked_by) and self.unpacked_by[0].op_type == "Transpose"


def places(graph: Any, prefix: str = "") -> Iterator[tuple[str, Place]]:
    """The tensors of a graph and those of the graphs inside it (the branches of If, the bodies of loops), by name.

    These are the initializers and what Constant nodes hold, in which some exporters (Paddle's) keep all weights.
    """
    makers = {_text(output): node for node in graph.node for output in node.output}
    for proto in graph.initializer:
        name = _text(proto.name)
        weight, nodes = _unpacking(name, makers)
        floats = next((a.i for node in nodes for a in node.attribute if node.op_type == "Cast" and a.name == "to"), 0)
        yield prefix + weight, Place(graph, proto, prefix, None, nodes, floats)
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            if attribute.name == "value":
                yield prefix + _text(node.output[0]), Place(graph, attribute.t, prefix, constant=node)
    for inner, inner_prefix in _inside(graph, prefix):
        yield from places(inner, inner_prefix)


def roles(
    graph: Any, prefix: str = "", outer: Mapping[str, tuple[str, bool]] | None = None
) -> Iterator[tuple[str, Role, bool]]:
    """The names of tensors, as `places` gives them, with what a node that takes the tensor makes of it, and whether
    the node's outputs are along its last axis instead of the first."""
    known = dict(outer or {})  # the name of the tensor that a value has the data of, and whether it is transposed
    known |= {name: (prefix + name, False) for name in (_text(proto.name) for proto in graph.initializer)}
    for node in graph.node:
        names = [_text(name) for name in node.input]
        if node.op_type == "Constant" and node.output:
            known[_text(node.output[0])] = prefix + _text(node.output[0]), False
        elif node.op_type in _SAME_VALUES and node.output and names and names[0] in known:
            tensor, transposed = known[names[0]]
            known[_text(node.output[0])] = tensor, transposed != (node.op_type == "Transpose")
        for position, name in enumerate(names):
            role = _ROLES.get((node.op_type, position))
            if role and name in known:
                tensor, transposed = known[name]
                yield tensor, role, role == "linear" and transposed != _outputs_last(node, position)
    for inner, inner_prefix in _inside(graph, prefix):
        yield from roles(inner, inner_prefix, known)


def values(graph: Any) -> Iterator[str]:
    """The names of all values of a graph and of those inside it."""
    yield from (_text(value.name) for kind in (graph.initializer, graph.input) for value in kind)
    yield from (_text(output) for node in graph.node for output in node.output)
    for inner, _ in _inside(graph, ""):
        yield from values(inner)


def _outputs_last(node: Any, position: int) -> bool:
    """Whether a node's input at ``position``, a matrix, has the outputs of the product along its last axis."""
    switched = any(a.name == ("transA", "transB")[position] and a.i for a in node.attribute if node.op_type == "Gemm")
    return node.op_type in ("MatMul", "Gemm") and (position == 1) != switched


def _unpacking(name: str, makers: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The weight that an initializer stands for and the nodes that make floats of it; its own name and none mostly."""
    for suffix, operators in _UNPACKING:
        weight, nodes, wanted = name.removesuffix(suffix), [], name.removesuffix(suffix)
        for operator in operators:
            node = makers.get(wanted)
            if weight == name or node is None or node.op_type != operator or not node.input:
                break
            nodes.append(node)
            wanted = _text(node.input[0])
        else:
            if wanted == name:
                return weight, tuple(nodes)
    return name, ()


def _inside(graph: Any, prefix: str) -> Iterator[tuple[Any, str]]:
    """The graphs inside a graph, with their prefix: the node's name and the attribute's."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == _GRAPH and len(prefix) < _MAX_PREFIX:
                name = _text(node.name or (node.output or ("",))[0])
                yield attribute.g, f"{prefix}{name}.{_text(attribute.name)}."


def _text(name: str | bytes) -> str:
    """A name as text; of one that is no UTF-8, in a damaged file, protobuf gives the bytes."""
    return name if isinstance(name, str) else name.decode("utf-8", "replace")
