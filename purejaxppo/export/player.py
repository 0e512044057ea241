"""Run a policy that `purejaxppo export` wrote to a .npz file, with only NumPy.

    from purejaxppo.export.player import load

    policy = load("policy.npz")
    carry = policy.initial_carry()
    action, carry = policy(obs, carry, start=True)

This module does not import the rest of the package, so you can copy it to a robot on its own.

A policy file contains arrays, and a header in JSON with a list of equations. An equation has the
name of an operation, the names of its input and output arrays, and parameters. Only the functions
in `OPERATIONS` are run, which are basic forms of JAX's primitives.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FORMAT = 1
"""Version of the file format. Files of other formats are rejected."""
HEADER = "header"


class Port(NamedTuple):
    """An input or output array."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Equation(NamedTuple):
    """One operation of a program, with the names of its arrays."""

    op: str
    inputs: tuple[str, ...]
    output: str
    params: dict[str, Any]


class Program(NamedTuple):
    """A policy as a list of operations.

    `obs` and `action` are trees: an array's index, or a mapping or list of trees.
    """

    inputs: tuple[Port, ...]
    """Arrays of the observation; for a recurrent policy also those of the carry, and `start`."""
    outputs: tuple[Port, ...]
    """Arrays of the action and of the next carry."""
    results: tuple[str, ...]
    """For each output, the name of its input, constant or equation."""
    equations: tuple[Equation, ...]
    constants: dict[str, np.ndarray]
    initial_carry: tuple[np.ndarray, ...]
    obs: Any
    """Tree of the observation, with indices of inputs."""
    action: Any
    """Tree of the action, with indices of outputs."""
    metadata: dict[str, Any]


class Policy:
    """A callable policy.

    Args:
        program: a program from `read`.
    """

    def __init__(self, program: Program) -> None:
        """Prepare the program's operations for execution with NumPy."""
        self.program = program
        self.metadata = program.metadata
        self._ports = {port.name: port for port in program.inputs}
        arrays = [*self.metadata.get("observation", ()), *self.metadata.get("action", ())]
        self._arrays = {array["name"]: array for array in arrays}
        self._obs = [p for p in program.inputs if p.name.partition(".")[0] == "obs"]
        self._carry = [p for p in program.inputs if p.name.startswith("carry.")]
        self._steps = [
            (functools.partial(OPERATIONS[e.op].compute, **e.params), e.inputs, e.output)
            for e in program.equations
        ]

    def initial_carry(self) -> tuple[np.ndarray, ...]:
        """Return the carry for the first step; () for a feed-forward policy."""
        return tuple(np.array(x) for x in self.program.initial_carry)

    def __call__(
        self, obs: Any, carry: Sequence[np.ndarray] = (), start: Any = False
    ) -> tuple[Any, tuple[np.ndarray, ...]]:
        """Compute the action for an observation.

        Args:
            obs: the simulator's observation with a leading batch axis, [B, ...], or a dict of such
                arrays.
            carry: the carry of the previous step; `initial_carry()` for the first step.
            start: bool or bool [B]: True for the first observation of an episode, which resets the
                carry.

        Returns:
            (action for the simulator [B, ...], carry).

        Raises:
            ValueError: an array has a wrong shape or type, a value that is not finite, or an
                integer outside its space.
        """
        values = dict(self.program.constants)
        parts = leaves_by_index(self.program.obs, obs, "obs")
        values |= {
            port.name: _checked(parts[i], port, self._arrays.get(port.name))
            for i, port in enumerate(self._obs)
        }
        if len(carry) != len(self._carry):
            raise ValueError(
                f"carry has {len(carry)} arrays, but the policy requires {len(self._carry)}. Start "
                f"with policy.initial_carry()."
            )
        values |= {p.name: _checked(x, p) for p, x in zip(self._carry, carry, strict=True)}
        if "start" in self._ports:
            port = self._ports["start"]
            is_start = np.asarray(start, bool)
            is_start = is_start if is_start.ndim else np.full(port.shape, is_start)
            values["start"] = _checked(is_start, port)
        with np.errstate(all="ignore"):
            for function, inputs, output in self._steps:
                values[output] = function(*[values[name] for name in inputs])
        results = [
            np.array(values[name], self._arrays.get(port.name, {}).get("dtype"))
            for name, port in zip(self.program.results, self.program.outputs, strict=True)
        ]
        first_carry = len(results) - len(self._carry)
        return _tree(self.program.action, results), tuple(results[first_carry:])


def load(path: str | Path) -> Policy:
    """Load a policy from a file.

    Args:
        path: a .npz file that `purejaxppo export` wrote.

    Raises:
        ValueError: the file does not exist, is corrupt, or has another format.
    """
    return Policy(read(path))


def read(path: str | Path) -> Program:
    """Read the program from a file; see `load` for errors."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
        version = header["format"]
        program = _program(header, arrays) if version == FORMAT else None
    except Exception as error:
        raise ValueError(
            f"{path}: corrupt, or not written by purejaxppo export. Export again."
        ) from error
    if program is None:
        raise ValueError(
            f"{path}: the file has format {version}, but this player reads format {FORMAT}. Export "
            f"the policy again, or use the version of purejaxppo that wrote it."
        )
    unknown = sorted({e.op for e in program.equations} - set(OPERATIONS))
    if unknown:
        raise ValueError(f"{path}: unknown operation {unknown[0]!r}. Update purejaxppo.")
    return program


def write(program: Program, path: Path) -> None:
    """Write a file for `load`."""
    header = {"format": FORMAT, **program._asdict()}
    del header["constants"], header["initial_carry"]
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays: dict[str, Any] = {HEADER: encoded, **program.constants}
    arrays |= {f"carry.{i}": x for i, x in enumerate(program.initial_carry)}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _program(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Program:
    ports = {
        side: tuple(Port(name, tuple(shape), dtype) for name, shape, dtype in header[side])
        for side in ("inputs", "outputs")
    }
    size = sum(port.name.startswith("carry.") for port in ports["inputs"])
    carry = tuple(arrays.pop(f"carry.{i}") for i in range(size))
    equations = tuple(
        Equation(op, tuple(inputs), output, dict(params))
        for op, inputs, output, params in header["equations"]
    )
    known = {port.name for port in ports["inputs"]} | set(arrays)
    for equation in equations:
        if not known.issuperset(equation.inputs):
            raise ValueError("an operation reads an array that is not defined")
        known.add(equation.output)
    if not known.issuperset(header["results"]):
        raise ValueError("a result is not defined")
    return Program(
        **ports,
        results=tuple(header["results"]),
        equations=equations,
        constants=arrays,
        initial_carry=carry,
        obs=header["obs"],
        action=header["action"],
        metadata=dict(header["metadata"]),
    )


def leaves_by_index(tree: Any, value: Any, name: str) -> dict[int, Any]:
    """Return the arrays of a value by their index in a tree."""
    if isinstance(tree, int):
        return {tree: value}
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    leaves: dict[int, Any] = {}
    for key in keys:
        try:
            part = value[str(key) if isinstance(value, dict) else key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{name}: the part {key!r} is missing. Required: {', '.join(map(str, keys))}."
            ) from error
        leaves |= leaves_by_index(tree[key], part, f"{name}.{key}")
    return leaves


def _tree(tree: Any, leaves: Sequence[np.ndarray]) -> Any:
    if isinstance(tree, int):
        return leaves[tree]
    if isinstance(tree, dict):
        return {name: _tree(part, leaves) for name, part in tree.items()}
    return tuple(_tree(part, leaves) for part in tree)


def _checked(value: Any, port: Port, description: dict[str, Any] | None = None) -> np.ndarray:
    """Check an array's shape, type and values; cast float64 to float32, as in training.

    Args:
        value: the array.
        port: the policy's input or output, with shape and type.
        description: metadata of the array, with the range of allowed integers.
    """
    array = np.asarray(value)
    if array.shape != port.shape:
        raise ValueError(
            f"{port.name} has shape {array.shape}, but the policy requires {port.shape}. The first "
            f"axis is the batch size of the export."
        )
    kinds = "biuf" if port.dtype.startswith("float") else "biu"
    if array.dtype.kind not in kinds:
        raise ValueError(
            f"{port.name} has dtype {array.dtype}, but the policy requires {port.dtype}."
        )
    if array.dtype.kind == "f" and port.name.partition(".")[0] == "obs":
        _check_all(np.isfinite(array), array, port, "observations must be finite")
    if np.dtype(port.dtype).kind in "iu":
        info = np.iinfo(port.dtype)
        limits = {"low": info.min, "high": info.max} | (description or {})
        low, high = np.asarray(limits["low"]), np.asarray(limits["high"])
        is_inside = (low <= array) & (array <= high)
        _check_all(is_inside, array, port, f"must be from {low.min()} to {high.max()}")
    return array.astype(port.dtype, copy=False)


def _check_all(is_valid: np.ndarray, array: np.ndarray, port: Port, problem: str) -> None:
    """Raise ValueError with the first invalid value of an array."""
    wrong = np.argwhere(~is_valid)
    if len(wrong):
        index = ", ".join(map(str, wrong[0]))
        raise ValueError(f"{port.name}[{index}] = {array[tuple(wrong[0])]}: {problem}.")


# The operations.


def _divide(a, b):
    """Divide; integers are truncated towards 0."""
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))).astype(a.dtype)


def _logistic(x):
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _rsqrt(x):
    return np.float32(1) / np.sqrt(x)


def _erf(x):
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def _select(which, on_false, on_true):
    return np.where(which, on_true, on_false)


def _slice(x, *, starts, limits, strides):
    return x[tuple(map(slice, starts, limits, strides))]


def _pad(x, value, *, low, high):
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=value)


def _gather(x, indices):
    """Return the values of x [K] at indices [..., 1] as [...]."""
    return x[indices[..., 0]]


def _convolve(x, kernel, *, strides, padding, dilation, groups):
    """Convolve [B, C, *S] with [F, C / groups, *K] to [B, F, *S'], as a product over patches."""
    n = len(strides)
    x = np.pad(x, [(0, 0), (0, 0), *padding])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel.shape[2:], dilation, strict=True)]
    patches = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, 2 + n)))
    strided = [slice(None, None, step) for step in (1, 1, *strides, *dilation)]
    patches = patches[tuple(strided)]
    axes = [1, *range(2 + n, 2 + 2 * n)], list(range(1, 2 + n))
    parts = [
        np.tensordot(part, weights, axes)
        for part, weights in zip(
            np.split(patches, groups, axis=1), np.split(kernel, groups), strict=True
        )
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def _reduction(function: Callable) -> Callable:
    return lambda x, *, axes: function(x, axis=tuple(axes)).astype(x.dtype, copy=False)


def _extreme(function: Callable) -> Callable:
    return lambda x, *, axis, dtype: function(x, axis=axis).astype(dtype)


class Operation(NamedTuple):
    """A JAX primitive with simple parameters, implemented in NumPy and in ONNX."""

    compute: Callable[..., np.ndarray]
    node: str = ""
    """The ONNX node with the same inputs; if empty, `onnx_file.FORMS` adds the nodes."""


OPERATIONS: dict[str, Operation] = {
    "abs": Operation(np.abs, "Abs"),
    "add": Operation(np.add, "Add"),
    "and": Operation(np.logical_and, "And"),
    "argmax": Operation(_extreme(np.argmax)),
    "argmin": Operation(_extreme(np.argmin)),
    "broadcast_in_dim": Operation(lambda x, *, shape: np.broadcast_to(x, shape)),
    "ceil": Operation(np.ceil, "Ceil"),
    "concatenate": Operation(lambda *parts, axis: np.concatenate(parts, axis=axis)),
    "conv_general_dilated": Operation(_convolve),
    "convert_element_type": Operation(lambda x, *, dtype: x.astype(dtype)),
    "cos": Operation(np.cos, "Cos"),
    "div": Operation(_divide, "Div"),
    "dot_general": Operation(np.matmul, "MatMul"),
    "eq": Operation(np.equal, "Equal"),
    "erf": Operation(_erf, "Erf"),
    "exp": Operation(np.exp, "Exp"),
    "expm1": Operation(np.expm1),
    "floor": Operation(np.floor, "Floor"),
    "gather": Operation(_gather),
    "ge": Operation(np.greater_equal, "GreaterOrEqual"),
    "gt": Operation(np.greater, "Greater"),
    "is_finite": Operation(np.isfinite),
    "le": Operation(np.less_equal, "LessOrEqual"),
    "log": Operation(np.log, "Log"),
    "log1p": Operation(np.log1p),
    "logistic": Operation(_logistic, "Sigmoid"),
    "lt": Operation(np.less, "Less"),
    "max": Operation(np.maximum, "Max"),
    "min": Operation(np.minimum, "Min"),
    "mul": Operation(np.multiply, "Mul"),
    "ne": Operation(np.not_equal),
    "neg": Operation(np.negative, "Neg"),
    "not": Operation(np.logical_not, "Not"),
    "or": Operation(np.logical_or, "Or"),
    "pad": Operation(_pad),
    "pow": Operation(np.power, "Pow"),
    "reduce_max": Operation(_reduction(np.max)),
    "reduce_min": Operation(_reduction(np.min)),
    "reduce_prod": Operation(_reduction(np.prod)),
    "reduce_sum": Operation(_reduction(np.sum)),
    "rem": Operation(np.fmod),
    "reshape": Operation(lambda x, *, shape: x.reshape(shape)),
    "round": Operation(np.rint, "Round"),
    "rsqrt": Operation(_rsqrt),
    "select_n": Operation(_select),
    "sign": Operation(np.sign, "Sign"),
    "sin": Operation(np.sin, "Sin"),
    "slice": Operation(_slice),
    "sqrt": Operation(np.sqrt, "Sqrt"),
    "sub": Operation(np.subtract, "Sub"),
    "tanh": Operation(np.tanh, "Tanh"),
    "transpose": Operation(lambda x, *, axes: x.transpose(axes)),
    "xor": Operation(np.logical_xor, "Xor"),
}
"""The JAX primitives that a policy may use."""
