"""A `player.Program` as an ONNX graph, built with `onnx.helper`.

jax2onnx converts jaxprs, too, but requires an orbax-checkpoint below the version that saves runs,
and twenty further packages. A program has some forty operations in one plain form each; the table
below has one or two nodes of ONNX for each of them.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.export.player import Program

OPSET = 18
IR_VERSION = 8
"""The oldest file format of this opset, so that runtimes since the year 2023 can read it."""


class Graph:
    """An ONNX graph under construction: its nodes and constants."""

    def __init__(self) -> None:
        """Starts an empty graph."""
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._listed: dict[tuple[int, ...], str] = {}

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns its output's name."""
        from onnx import helper

        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        """Adds an array; returns its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Adds a constant int64 [K], ONNX's form of shapes and axes; returns its name."""
        key = tuple(values)
        if key not in self._listed:
            name = f"i{len(self._listed)}"
            self._listed[key] = self.constant(name, np.asarray(key, np.int64))
        return self._listed[key]

    def one(self) -> str:
        """Adds the constant 1, float32; returns its name."""
        if not any(constant.name == "one" for constant in self.constants):
            self.constant("one", np.asarray(1, np.float32))
        return "one"


def write(program: Program, path: Path) -> None:
    """Writes a program as an ONNX file, its metadata among the model's properties."""
    import onnx
    from onnx import helper

    graph = Graph()
    for name, value in program.constants.items():
        graph.constant(name, value)
    for equation in program.equations:
        last = NODES[equation.op](graph, *equation.inputs, **equation.params)
        graph.node("Identity", last, output=equation.output)
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


# Each function adds an operation's nodes and returns the last one's output.


def _node(op: str, **attributes: Any) -> Callable[..., str]:
    return lambda graph, *inputs: graph.node(op, *inputs, **attributes)


def _negated(op: str) -> Callable[..., str]:
    return lambda graph, *inputs: graph.node("Not", graph.node(op, *inputs))


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


def _gather(graph: Graph, x: str, places: str) -> str:
    return graph.node("GatherND", x, _convert(graph, places, dtype="int64"))


def _expm1(graph: Graph, x: str) -> str:
    return graph.node("Sub", graph.node("Exp", x), graph.one())


def _log1p(graph: Graph, x: str) -> str:
    return graph.node("Log", graph.node("Add", x, graph.one()))


def _is_finite(graph: Graph, x: str) -> str:
    return graph.node("Not", graph.node("Or", graph.node("IsNaN", x), graph.node("IsInf", x)))


NODES: dict[str, Callable[..., str]] = {
    "abs": _node("Abs"),
    "add": _node("Add"),
    "and": _node("And"),
    "argmax": _extreme("ArgMax"),
    "argmin": _extreme("ArgMin"),
    "broadcast_in_dim": _shaped("Expand"),
    "ceil": _node("Ceil"),
    "concatenate": lambda graph, *parts, axis: graph.node("Concat", *parts, axis=axis),
    "conv_general_dilated": _convolve,
    "convert_element_type": _convert,
    "cos": _node("Cos"),
    "div": _node("Div"),
    "dot_general": _node("MatMul"),
    "eq": _node("Equal"),
    "erf": _node("Erf"),
    "exp": _node("Exp"),
    "expm1": _expm1,
    "floor": _node("Floor"),
    "gather": _gather,
    "ge": _node("GreaterOrEqual"),
    "gt": _node("Greater"),
    "is_finite": _is_finite,
    "le": _node("LessOrEqual"),
    "log": _node("Log"),
    "log1p": _log1p,
    "logistic": _node("Sigmoid"),
    "lt": _node("Less"),
    "max": _node("Max"),
    "min": _node("Min"),
    "mul": _node("Mul"),
    "ne": _negated("Equal"),
    "neg": _node("Neg"),
    "not": _node("Not"),
    "or": _node("Or"),
    "pad": _pad,
    "pow": _node("Pow"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_prod": _reduction("ReduceProd"),
    "reduce_sum": _reduction("ReduceSum"),
    "rem": _node("Mod", fmod=1),
    "reshape": _shaped("Reshape"),
    "round": _node("Round"),
    "rsqrt": lambda graph, x: graph.node("Reciprocal", graph.node("Sqrt", x)),
    "select_n": lambda graph, which, no, yes: graph.node("Where", which, yes, no),
    "sign": _node("Sign"),
    "sin": _node("Sin"),
    "slice": _slice,
    "sqrt": _node("Sqrt"),
    "sub": _node("Sub"),
    "tanh": _node("Tanh"),
    "transpose": lambda graph, x, *, axes: graph.node("Transpose", x, perm=axes),
    "xor": _node("Xor"),
}
"""Nodes for each of `player.OPERATIONS`."""


class Session:
    """A callable ONNX file on a CPU: by onnxruntime, or else by onnx's reference evaluator.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        self._session: Any
        try:
            import onnxruntime
        except ModuleNotFoundError:
            from onnx.reference import ReferenceEvaluator

            self._session, self.name = ReferenceEvaluator(str(path)), "onnx's reference evaluator"
        else:
            cpu = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(str(path), providers=cpu)
            self.name = "onnxruntime"

    def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Computes outputs, in order, from inputs by name."""
        return list(self._session.run(None, inputs))
