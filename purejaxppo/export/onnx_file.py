"""Conversion of a `player.Program` to an ONNX file, with `onnx.helper`.

jax2onnx also converts jaxprs, but requires twenty packages and an older orbax-checkpoint than this
package. Most operations of a program are a single ONNX node (`player.OPERATIONS`). `FORMS` has the
nodes of the others.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.export.player import OPERATIONS, Program

OPSET = 18
IR_VERSION = 8
"""The oldest file format of this opset, which runtimes since 2023 can read."""
ONE = np.ones((), np.float32)


class Graph:
    """Nodes and constants of an ONNX graph under construction."""

    def __init__(self) -> None:
        """Create an empty graph."""
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[str, bytes], str] = {}

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add an array and return its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def known(self, value: np.ndarray) -> str:
        """Add an array with at most one axis, unless an equal one exists, and return its name."""
        key = value.dtype.str, value.tobytes()
        if key not in self._known:
            self._known[key] = self.constant(f"k{len(self._known)}", value)
        return self._known[key]

    def integers(self, values: Sequence[int]) -> str:
        """Add a constant int64 [K], as ONNX uses for shapes and axes, and return its name."""
        return self.known(np.asarray(tuple(values), np.int64))


def write(program: Program, path: Path) -> None:
    """Write a program as an ONNX file, with its metadata as model properties."""
    import onnx
    from onnx import helper

    graph = Graph()
    for name, value in program.constants.items():
        graph.constant(name, value)
    for equation in program.equations:
        op, inputs, output, params = equation
        if op in FORMS:
            graph.node("Identity", FORMS[op](graph, *inputs, **params), output=output)
        else:
            graph.node(OPERATIONS[op].node, *inputs, output=output)
    for port, result in zip(program.outputs, program.results, strict=True):
        graph.node("Identity", result, output=port.name)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [_value(port) for port in program.inputs],
            [_value(port) for port in program.outputs],
            graph.constants,
        ),
        producer_name="purejaxppo",
        producer_version=str(program.metadata.get("version", "")),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(
        model,
        {
            key: json.dumps(value) if isinstance(value, list) else str(value)
            for key, value in program.metadata.items()
        },
    )
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _value(port: Any) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(port.name, _dtype(port.dtype), port.shape)


def _dtype(name: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(name))


# Each function adds the nodes of an operation and returns the name of the last output.


def _reduction(op: str) -> Callable[..., str]:
    return lambda graph, x, *, axes: graph.node(op, x, graph.integers(axes), keepdims=0)


def _extreme(op: str) -> Callable[..., str]:
    def add(graph: Graph, x: str, *, axis: int, dtype: str) -> str:
        return _convert(graph, graph.node(op, x, axis=axis, keepdims=0), dtype=dtype)

    return add


def _convert(graph: Graph, x: str, *, dtype: str) -> str:
    return graph.node("Cast", x, to=_dtype(dtype))


def _shaped(op: str) -> Callable[..., str]:
    return lambda graph, x, *, shape: graph.node(op, x, graph.integers(shape))


def _slice(graph: Graph, x: str, *, starts, limits, strides) -> str:
    axes = range(len(starts))
    return graph.node("Slice", x, *map(graph.integers, (starts, limits, axes, strides)))


def _pad(graph: Graph, x: str, value: str, *, low, high) -> str:
    return graph.node("Pad", x, graph.integers([*low, *high]), value)


def _convolve(graph: Graph, x: str, kernel: str, *, strides, padding, dilation, groups) -> str:
    pads = [before for before, _ in padding] + [after for _, after in padding]
    options = {"strides": strides, "pads": pads, "dilations": dilation, "group": groups}
    return graph.node("Conv", x, kernel, **options)


def _gather(graph: Graph, x: str, indices: str) -> str:
    return graph.node("GatherND", x, _convert(graph, indices, dtype="int64"))


def _expm1(graph: Graph, x: str) -> str:
    return graph.node("Sub", graph.node("Exp", x), graph.known(ONE))


def _log1p(graph: Graph, x: str) -> str:
    return graph.node("Log", graph.node("Add", x, graph.known(ONE)))


def _is_finite(graph: Graph, x: str) -> str:
    return graph.node("Not", graph.node("Or", graph.node("IsNaN", x), graph.node("IsInf", x)))


FORMS: dict[str, Callable[..., str]] = {
    "argmax": _extreme("ArgMax"),
    "argmin": _extreme("ArgMin"),
    "broadcast_in_dim": _shaped("Expand"),
    "concatenate": lambda graph, *parts, axis: graph.node("Concat", *parts, axis=axis),
    "conv_general_dilated": _convolve,
    "convert_element_type": _convert,
    "expm1": _expm1,
    "gather": _gather,
    "is_finite": _is_finite,
    "log1p": _log1p,
    "ne": lambda graph, x, y: graph.node("Not", graph.node("Equal", x, y)),
    "pad": _pad,
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_prod": _reduction("ReduceProd"),
    "reduce_sum": _reduction("ReduceSum"),
    "rem": lambda graph, x, y: graph.node("Mod", x, y, fmod=1),
    "reshape": _shaped("Reshape"),
    "rsqrt": lambda graph, x: graph.node("Reciprocal", graph.node("Sqrt", x)),
    "select_n": lambda graph, which, no, yes: graph.node("Where", which, yes, no),
    "slice": _slice,
    "transpose": lambda graph, x, *, axes: graph.node("Transpose", x, perm=axes),
}
"""Functions that add the nodes of operations without an equivalent single node."""


def load(path: Path) -> tuple[Callable[[dict[str, np.ndarray]], list[np.ndarray]], str]:
    """Load a file for a CPU in onnxruntime or, if missing, in onnx's reference evaluator.

    Returns:
        A function from inputs by name to the outputs in order, and the name of the runtime.
    """
    session: Any
    try:
        import onnxruntime
    except ModuleNotFoundError:
        from onnx.reference import ReferenceEvaluator

        session, name = ReferenceEvaluator(str(path)), "onnx's reference evaluator"
    else:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        name = "onnxruntime"
    return lambda inputs: list(session.run(None, inputs)), name
