"""Rewriting of JAX primitives into the basic forms of `player.OPERATIONS`.

A rule takes an equation, and returns a function of JAX arrays that computes the same with basic
operations, or None if the equation is basic. The basic forms:

    dot_general            [M, K] x [K, N], or the same with a leading batch axis on all
    conv_general_dilated   [B, C, *S] x [F, C / groups, *K], padding not negative
    gather                 of x [K], at indices [..., 1] within bounds
    broadcast_in_dim       to a shape with the same number of axes
    pad                    not negative, not between elements
    select_n               by a bool, of two arrays that are not bool
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

FLAT = lax.GatherDimensionNumbers((), collapsed_slice_dims=(0,), start_index_map=(0,))
IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
SMALL_INTEGERS = {"int8", "int16", "uint8", "uint16"}


Eqn = Any
"""An equation of a jaxpr, with known shapes and dtypes."""

Settings = dict[str, Any]
"""Parameters of an operation, by name."""


def rewrite(eqn: Eqn) -> Callable | None:
    """Return a function of an equation's inputs in basic operations; None if it is basic.

    Raises:
        ValueError: the equation is not supported.
    """
    op = eqn.primitive.name
    if op in RULES:
        return RULES[op](eqn)
    if op in LOGICAL and eqn.outvars[0].aval.dtype != bool:
        raise ValueError(f"the policy uses the bitwise operation {op!r}, which cannot be exported.")
    if op in ELEMENTWISE and str(eqn.invars[0].aval.dtype) in SMALL_INTEGERS:
        dtype = eqn.outvars[0].aval.dtype
        return lambda *xs: eqn.primitive.bind(*[x.astype(jnp.int32) for x in xs]).astype(dtype)
    return None


LOGICAL = {"and", "not", "or", "xor"}
ELEMENTWISE = {"abs", "add", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "sub"}
"""Operations that ONNX runtimes do not support in 8 or 16 bits."""


def _plain(params: Settings, *names: str) -> bool:
    """Return True if these parameters, such as dilations, have no effect: None or all ones."""
    return all(set(params[name] or ()) <= {1} for name in names)


def _reject(eqn: Eqn, form: str):
    raise ValueError(f"the policy uses {eqn.primitive.name!r} {form}, which cannot be exported.")


def _dot_general(eqn: Eqn) -> Callable | None:
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    a, b = (var.aval for var in eqn.invars)
    out = eqn.outvars[0].aval
    n = len(batch_a)
    leading = tuple(range(n))
    plain = ((n + 1,), (n,)), (leading, leading)
    numbers = tuple(tuple(map(tuple, pair)) for pair in eqn.params["dimension_numbers"])
    if n <= 1 and numbers == plain and a.ndim == b.ndim == n + 2 and a.dtype == out.dtype:
        return None
    free_a = [i for i in range(a.ndim) if i not in (*contract_a, *batch_a)]
    free_b = [i for i in range(b.ndim) if i not in (*contract_b, *batch_b)]

    def matrices(x, y):
        sizes = [math.prod(a.shape[i] for i in axes) for axes in (batch_a, free_a, contract_a)]
        batches, m, k = sizes
        width = math.prod(b.shape[i] for i in free_b)
        batch = (batches,) if n else ()
        x = x.astype(out.dtype).transpose((*batch_a, *free_a, *contract_a)).reshape(*batch, m, k)
        y = y.astype(out.dtype).transpose((*batch_b, *contract_b, *free_b))
        y = y.reshape(*batch, k, width)
        return lax.dot_general(x, y, plain).reshape(out.shape)

    return matrices


def _conv(eqn: Eqn) -> Callable | None:
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    if not _plain(params, "lhs_dilation") or params["batch_group_count"] != 1:
        _reject(eqn, "of dilated inputs or grouped batches")
    if any(size < 0 for pair in params["padding"] for size in pair):
        _reject(eqn, "with negative padding")
    axes = tuple(range(eqn.invars[0].aval.ndim))
    if all(spec == axes for spec in numbers):
        return None

    def channels_first(x, kernel):
        y = lax.conv_general_dilated(
            x.transpose(numbers.lhs_spec),
            kernel.transpose(numbers.rhs_spec),
            params["window_strides"],
            params["padding"],
            rhs_dilation=params["rhs_dilation"],
            feature_group_count=params["feature_group_count"],
        )
        return y.transpose(np.argsort(numbers.out_spec))

    return channels_first


def _take(x, indices):
    """Return the elements of x at indices of its flattened form."""
    return lax.gather(x.reshape(-1), indices[..., None], FLAT, (1,), mode=IN_BOUNDS)


def _flat_indices(shape: tuple[int, ...], indices: list[Any]):
    """Return the positions of elements in a flattened array, from an array of indices per axis."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return sum((i * stride for i, stride in zip(indices, strides, strict=True)), jnp.int32(0))


def _gather(eqn: Eqn) -> Callable | None:
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    operand = eqn.invars[0].aval
    if numbers == FLAT and operand.ndim == 1 and params["mode"] == IN_BOUNDS:
        return None
    ndim = eqn.outvars[0].aval.ndim
    batch_axes = [i for i in range(ndim) if i not in numbers.offset_dims]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(operand.ndim) if i not in dropped]
    limits = np.subtract(operand.shape, params["slice_sizes"])

    def along(x, axes):
        """Expand an array, with its axes at `axes` of the result."""
        return lax.expand_dims(x, [i for i in range(ndim) if i not in axes])

    def flat(x, starts):
        starts = starts.astype(jnp.int32)
        indices, inside = [], jnp.ones((1,) * ndim, bool)
        for axis in range(operand.ndim):
            index = jnp.zeros((1,) * ndim, jnp.int32)
            if axis in numbers.start_index_map:
                start = along(starts[..., numbers.start_index_map.index(axis)], batch_axes)
                inside &= (start >= 0) & (start <= limits[axis])
                index += jnp.clip(start, 0, limits[axis])
            if axis in numbers.operand_batching_dims:
                batching_axis = numbers.operand_batching_dims.index(axis)
                target = batch_axes[numbers.start_indices_batching_dims[batching_axis]]
                index += along(jnp.arange(operand.shape[axis], dtype=jnp.int32), [target])
            if axis in kept:
                target = numbers.offset_dims[kept.index(axis)]
                size = params["slice_sizes"][axis]
                index += along(jnp.arange(size, dtype=jnp.int32), [target])
            indices.append(index)
        y = _take(x, _flat_indices(operand.shape, indices))
        if params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
            return y
        return jnp.where(inside, y, jnp.asarray(_filler(params["fill_value"], y.dtype), y.dtype))

    return flat


def _filler(value: Any, dtype: Any) -> Any:
    """Return the value that a gather returns for indices outside of the array."""
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.nan
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    signed = jnp.issubdtype(dtype, jnp.signedinteger)
    return jnp.iinfo(dtype).min if signed else jnp.iinfo(dtype).max


def _dynamic_slice(eqn: Eqn) -> Callable:
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]

    def flat(x, *starts):
        indices = [
            lax.expand_dims(
                jnp.clip(start.astype(jnp.int32), 0, shape[i] - size)
                + jnp.arange(size, dtype=jnp.int32),
                [j for j in range(len(shape)) if j != i],
            )
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]
        return _take(x, _flat_indices(shape, indices))

    return flat


def _reduce_window(combine: Callable, start: float, eqn: Eqn) -> Callable:
    """Reduce axis by axis, over shifted slices."""
    params = eqn.params
    if not _plain(params, "base_dilation") or eqn.outvars[0].aval.dtype != jnp.float32:
        _reject(eqn, "of dilated inputs or integers")

    def slices(x):
        if np.any(params["padding"]):
            x = lax.pad(x, jnp.asarray(start, x.dtype), [(*pair, 0) for pair in params["padding"]])
        for axis, (window, stride, dilation) in enumerate(
            zip(
                params["window_dimensions"],
                params["window_strides"],
                params["window_dilation"],
                strict=True,
            )
        ):
            if window == 1 and stride == 1:
                continue
            last = (x.shape[axis] - (window - 1) * dilation - 1) // stride * stride
            parts = [
                lax.slice_in_dim(x, i * dilation, i * dilation + last + 1, stride, axis)
                for i in range(window)
            ]
            x = functools.reduce(combine, parts)
        return x

    return slices


def _broadcast(eqn: Eqn) -> Callable | None:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    given = eqn.invars[0].aval.shape
    if len(given) == len(shape) and given != shape:
        return None
    full = [1] * len(shape)
    for axis, size in zip(axes, given, strict=True):
        full[axis] = size
    if math.prod(full) == math.prod(shape):
        return lambda x, *sizes: lax.reshape(x, shape)
    return lambda x, *sizes: lax.broadcast_in_dim(
        lax.reshape(x, full), shape, tuple(range(len(shape)))
    )


def _pad(eqn: Eqn) -> Callable | None:
    config = [tuple(map(int, sizes)) for sizes in eqn.params["padding_config"]]
    if any(between for *_, between in config):
        _reject(eqn, "between elements")
    if all(low >= 0 and high >= 0 for low, high, _ in config):
        return None

    def cut(x, value):
        starts = [max(-low, 0) for low, _, _ in config]
        limits = [size + min(high, 0) for size, (_, high, _) in zip(x.shape, config, strict=True)]
        pads = [(max(low, 0), max(high, 0), 0) for low, high, _ in config]
        return lax.pad(lax.slice(x, starts, limits), value, pads)

    return cut


def _select(eqn: Eqn) -> Callable | None:
    which, *cases = (var.aval for var in eqn.invars)
    if which.dtype != bool:
        return lambda which, *xs: functools.reduce(
            lambda y, i: jnp.where(which == i, xs[i], y), range(1, len(xs)), xs[0]
        )
    if cases[0].dtype == bool:
        return lambda which, no, yes: (which & yes) | (~which & no)
    if str(cases[0].dtype) in SMALL_INTEGERS - {"uint8"}:
        dtype = cases[0].dtype
        return lambda which, *xs: lax.select_n(which, *[x.astype(jnp.int32) for x in xs]).astype(
            dtype
        )
    return None


def _integer_pow(eqn: Eqn) -> Callable:
    def power(x, y: int):
        if y < 0:
            return 1 / power(x, -y)
        if y == 0:
            return jnp.ones_like(x)
        half = power(x, y // 2) if y > 1 else None
        return x if half is None else half * half * (x if y % 2 else 1)

    return lambda x: power(x, eqn.params["y"])


def _split(eqn: Eqn) -> Callable:
    ends = np.cumsum(eqn.params["sizes"])
    axis = eqn.params["axis"]
    return lambda x: [
        lax.slice_in_dim(x, int(end - size), int(end), axis=axis)
        for end, size in zip(ends, eqn.params["sizes"], strict=True)
    ]


def _round(eqn: Eqn) -> None:
    if eqn.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        _reject(eqn, "away from zero at halves")


def _of_shape(eqn: Eqn) -> Callable:
    """Reshape, for operations that only add or remove axes of size 1."""
    return lambda x: lax.reshape(x, eqn.outvars[0].aval.shape)


def _stack(eqn: Eqn) -> Callable:
    axis = eqn.params["axis"]
    return lambda *xs: lax.concatenate([lax.expand_dims(x, [axis]) for x in xs], axis)


def _of_bools(reduce: Callable) -> Callable:
    def rule(eqn: Eqn) -> Callable:
        axes = tuple(eqn.params["axes"])
        return lambda x: reduce(x.astype(jnp.int32), axes).astype(bool)

    return rule


def _reverse(eqn: Eqn) -> Callable:
    shape, axes = eqn.invars[0].aval.shape, eqn.params["dimensions"]
    indices = np.flip(np.arange(math.prod(shape), dtype=np.int32).reshape(shape), axes)
    return lambda x: _take(x, jnp.asarray(indices))


RULES: dict[str, Callable[[Eqn], Callable | None]] = {
    "add_any": lambda eqn: lax.add,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda eqn: lambda low, x, high: jnp.minimum(jnp.maximum(x, low), high),
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "erfc": lambda eqn: lambda x: 1 - lax.erf(x),
    "exp2": lambda eqn: lambda x: lax.exp(x * np.float32(math.log(2))),
    "expand_dims": _of_shape,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "pad": _pad,
    "reduce_and": _of_bools(jnp.min),
    "reduce_or": _of_bools(jnp.max),
    "reduce_window_max": lambda eqn: _reduce_window(jnp.maximum, -jnp.inf, eqn),
    "reduce_window_sum": lambda eqn: _reduce_window(jnp.add, 0, eqn),
    "rev": _reverse,
    "round": _round,
    "select_n": _select,
    "split": _split,
    "square": lambda eqn: lambda x: x * x,
    "squeeze": _of_shape,
    "stack": _stack,
}
"""Rules for operations with forms that are not basic."""


def _integers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _reduced(params: Settings) -> Settings:
    return {"axes": _integers(params["axes"])}


def _extreme(params: Settings) -> Settings:
    (axis,) = params["axes"]
    return {"axis": int(axis), "dtype": str(np.dtype(params["index_dtype"]))}


def _convolution(params: Settings) -> Settings:
    return {
        "strides": _integers(params["window_strides"]),
        "padding": [_integers(pair) for pair in params["padding"]],
        "dilation": _integers(params["rhs_dilation"]),
        "groups": int(params["feature_group_count"]),
    }


def _cut(params: Settings) -> Settings:
    starts = _integers(params["start_indices"])
    return {
        "starts": starts,
        "limits": _integers(params["limit_indices"]),
        "strides": _integers(params["strides"] or [1] * len(starts)),
    }


PARAMETER_RULES: dict[str, Callable[[Settings], Settings]] = {
    "argmax": _extreme,
    "argmin": _extreme,
    "broadcast_in_dim": lambda p: {"shape": _integers(p["shape"])},
    "concatenate": lambda p: {"axis": int(p["dimension"])},
    "conv_general_dilated": _convolution,
    "convert_element_type": lambda p: {"dtype": str(np.dtype(p["new_dtype"]))},
    "pad": lambda p: {
        "low": [int(low) for low, _, _ in p["padding_config"]],
        "high": [int(high) for _, high, _ in p["padding_config"]],
    },
    "reduce_max": _reduced,
    "reduce_min": _reduced,
    "reduce_prod": _reduced,
    "reduce_sum": _reduced,
    "reshape": lambda p: {"shape": _integers(p["new_sizes"])},
    "slice": _cut,
    "transpose": lambda p: {"axes": _integers(p["permutation"])},
}
"""Functions from the parameters of a basic form to plain values."""
