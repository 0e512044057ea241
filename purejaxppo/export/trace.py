"""Conversion of a JAX function to a `player.Program` of few basic operations.

The function is traced to a jaxpr, which is evaluated with names instead of unknown arrays. Values
that depend only on parameters are computed, calls are inlined, loops are unrolled, and unused
equations and inputs, such as the critic's, are dropped. `rewrite.py` replaces general operations
by basic ones, so players need to implement only these.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from purejaxppo.export.player import OPERATIONS, Equation, Port, Program
from purejaxppo.export.rewrite import PARAMETER_RULES, Settings, rewrite

MAX_ITERATIONS = 256
"""Largest number of iterations of a loop that is unrolled."""
MAX_BROADCAST = 4096
"""Largest number of elements of a broadcast constant that is stored instead of computed."""
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that call a jaxpr, and the parameter that contains it."""
IDENTITIES = {"copy", "copy_p", "optimization_barrier", "sharding_constraint", "stop_gradient"}
DTYPES = {"bool", "float32", "int8", "int16", "int32", "uint8", "uint16", "uint32"}


TracedValues = list[Any]
"""Values of variables: arrays, or `Named` arrays."""


class Named(NamedTuple):
    """An array whose values are unknown while tracing."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


def trace(
    function: Callable[[Any, Any, Any], tuple[Any, Any]],
    obs: Any,
    carry: Any = (),
    metadata: dict[str, Any] | None = None,
    *,
    keep_inputs: bool = False,
) -> Program:
    """Trace a policy to a program.

    Inputs that do not affect the action are dropped, such as keys of a dict observation that only
    the critic sees, and the critic's carry.

    Args:
        function: (obs, carry, start bool [B]) -> (action, carry); all arrays are [B, ...].
        obs: an example observation, a pytree of dicts, tuples and lists.
        carry: the carry at the start of an episode, a pytree of arrays; () without memory.
        metadata: plain values to store in the file.
        keep_inputs: whether to keep inputs that do not affect the action.

    Raises:
        ValueError: the function uses an operation that is not supported.
    """
    program = _traced(function, obs, carry, metadata or {})
    if keep_inputs:
        return program
    used = _used_inputs(program)
    needed = _needed_part(obs, "obs", used)
    arrays, structure = jax.tree.flatten(carry)
    used_arrays = [i for i in range(len(arrays)) if f"carry.{i}" in used]

    def reduced(obs_part, carry_part, start):
        full_carry = [*arrays]
        for i, array in zip(used_arrays, carry_part, strict=True):
            full_carry[i] = array
        full_obs = _completed(obs, obs_part)
        action, next_carry = function(full_obs, jax.tree.unflatten(structure, full_carry), start)
        return action, tuple(jax.tree.leaves(next_carry)[i] for i in used_arrays)

    if len(used_arrays) == len(arrays) and _names("obs", needed) == _names("obs", obs):
        return program
    return _traced(reduced, needed, tuple(arrays[i] for i in used_arrays), program.metadata)


def _traced(function: Callable, obs: Any, carry: Any, metadata: dict[str, Any]) -> Program:
    """Trace a policy to a program with all its inputs; see `trace`."""
    start = np.zeros(np.shape(jax.tree.leaves(obs)[0])[:1], bool)
    make = jax.make_jaxpr(function, return_shape=True)
    closed, (action, next_carry) = make(obs, carry, start)
    if str(jax.tree.structure(next_carry)) != str(jax.tree.structure(carry)):
        raise ValueError("the policy must return a carry with the same structure as its input.")
    initial = tuple(np.asarray(x) for x in jax.tree.leaves(carry))
    parts = _names("obs", obs)
    if duplicates := [name for name in parts if parts.count(name) > 1]:
        raise ValueError(
            f"the observation has two parts with the name {duplicates[0].removeprefix('obs.')}. "
            f"Rename one of its keys in the environment and train again."
        )
    names = [*parts, *(f"carry.{i}" for i in range(len(initial))), "start"]
    arguments = [
        Named(name, tuple(v.aval.shape), v.aval.dtype)
        for name, v in zip(names, closed.jaxpr.invars, strict=True)
    ]
    builder = _Builder()
    values = builder.run(closed.jaxpr, closed.consts, arguments)
    results = [builder.name(value) for value in values]
    next_names = [f"next_carry.{i}" for i in range(len(initial))]
    shapes = jax.tree.leaves((action, next_carry))
    equations, constants = _needed(builder, results)
    read = {name for equation in equations for name in equation.inputs}.union(results)
    return Program(
        inputs=tuple(map(_port, arguments if initial or "start" in read else arguments[:-1])),
        outputs=tuple(
            Port(name, tuple(shape.shape), str(shape.dtype))
            for name, shape in zip([*_names("action", action), *next_names], shapes, strict=True)
        ),
        results=tuple(results),
        equations=equations,
        constants=constants,
        initial_carry=initial,
        obs=_numbered(obs),
        action=_numbered(action),
        metadata=metadata,
    )


def _used_inputs(program: Program) -> set[str]:
    """Return the names of inputs that affect the action, now or through the carry."""
    inputs_of = {equation.output: equation.inputs for equation in program.equations}
    size = len(program.initial_carry)
    results = list(program.results)
    actions, next_carry = results[: len(results) - size], results[len(results) - size :]
    used: set[str] = set()
    waiting = actions
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += inputs_of.get(name, ())
            if name.startswith("carry."):
                waiting.append(next_carry[int(name.removeprefix("carry."))])
    return used


def _needed_part(obs: Any, name: str, used: set[str]) -> Any:
    """Drop entries of dicts whose arrays are all unused.

    Args:
        obs: the observation, or a part of it.
        name: name of the observation or part.
        used: names of arrays.
    """
    if not isinstance(obs, dict):
        return obs
    parts = {
        key: _needed_part(part, f"{name}.{key}", used)
        for key, part in obs.items()
        if used.intersection(_names(f"{name}.{key}", part))
    }
    return parts or obs


def _completed(obs: Any, part: Any) -> Any:
    """Restore the entries that `_needed_part` dropped."""
    if not isinstance(obs, dict):
        return part
    return {key: _completed(x, part[key]) if key in part else x for key, x in obs.items()}


class _Builder:
    """A program under construction."""

    def __init__(self) -> None:
        """Create an empty program."""
        self.equations: list[Equation] = []
        self.constants: dict[str, np.ndarray] = {}
        self._known: dict[Any, str] = {}
        self._kept_alive: list[Any] = []

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> TracedValues:
        """Evaluate a jaxpr; return its results, as arrays or `Named` arrays."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        def value(var: Any) -> Any:
            literal: Any = var if isinstance(var, Literal) else None
            return env[var] if literal is None else np.asarray(literal.val, literal.aval.dtype)

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [value(var) for var in eqn.invars])
            env |= zip(eqn.outvars, results, strict=True)
        return [value(var) for var in jaxpr.outvars]

    def name(self, value: Any) -> str:
        """Return the name of a value in the program; an array is added as a constant."""
        if isinstance(value, Named):
            return value.name
        array = np.asarray(value)
        key = (str(array.dtype), array.tobytes()) if array.ndim == 0 else id(value)
        if key not in self._known:
            self._known[key] = f"c{len(self._known)}"
            self._kept_alive.append(value)  # keeps its id unique
            self.constants[self._known[key]] = array
        return self._known[key]

    def _call(self, function: Callable, *values: Any) -> TracedValues:
        """Evaluate a JAX function; return its results."""
        shapes = [jax.ShapeDtypeStruct(np.shape(v), v.dtype) for v in values]
        closed = jax.make_jaxpr(function)(*shapes)
        return self.run(closed.jaxpr, closed.consts, values)

    def _equation(self, eqn: Any, values: TracedValues) -> TracedValues:
        op, known = eqn.primitive.name, not any(isinstance(v, Named) for v in values)
        if op in IDENTITIES:
            return values
        if op in CALLS:
            inner = eqn.params[CALLS[op]]
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values)
        if op == "scan":
            return self._loop(eqn.params, values)
        size = sum(var.aval.size for var in eqn.outvars)
        if known and not (op == "broadcast_in_dim" and size > MAX_BROADCAST):
            results = eqn.primitive.bind(*values, **eqn.params)
            return list(results) if eqn.primitive.multiple_results else [results]
        function = rewrite(eqn)
        if function is not None:
            return self._call(function, *values)
        return [self._emit(eqn, values)]

    def _emit(self, eqn: Any, values: TracedValues) -> Named:
        op, aval = eqn.primitive.name, eqn.outvars[0].aval
        if op not in OPERATIONS:
            raise ValueError(
                f"the policy uses the operation {op!r}, which cannot be exported. Supported: "
                f"{', '.join(OPERATIONS)}."
            )
        if str(aval.dtype) not in DTYPES:
            raise ValueError(f"the policy computes in {aval.dtype}, which cannot be exported.")
        params = PARAMETER_RULES[op](eqn.params) if op in PARAMETER_RULES else {}
        output = f"v{len(self.equations)}"
        inputs = tuple(self.name(value) for value in values)
        self.equations.append(Equation(op, inputs, output, params))
        return Named(output, tuple(aval.shape), aval.dtype)

    def _loop(self, params: Settings, values: TracedValues) -> TracedValues:
        """Unroll a scan."""
        length, (num_consts, num_carry) = params["length"], _scan_sizes(params)
        if length > MAX_ITERATIONS:
            raise ValueError(
                f"the policy has a loop of {length} iterations. The export supports at most "
                f"{MAX_ITERATIONS}."
            )
        closed = params["jaxpr"]
        consts, carry = values[:num_consts], values[num_consts : num_consts + num_carry]
        rows = []
        for i in reversed(range(length)) if params["reverse"] else range(length):
            row = [
                self._call(lambda x, i=i: lax.index_in_dim(x, i, keepdims=False), x)[0]
                for x in values[num_consts + num_carry :]
            ]
            results = self.run(closed.jaxpr, closed.consts, [*consts, *carry, *row])
            carry = results[:num_carry]
            rows.append(results[num_carry:])
        rows = rows[::-1] if params["reverse"] else rows
        columns = zip(*rows, strict=True)
        return [*carry, *(self._call(lambda *r: jnp.stack(r), *c)[0] for c in columns)]


def _scan_sizes(params: Settings) -> tuple[int, int]:
    """Return the numbers of constants and carried values of a scan."""
    if "num_consts" in params:  # JAX before 0.11
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _needed(
    builder: _Builder, results: Sequence[str]
) -> tuple[tuple[Equation, ...], dict[str, np.ndarray]]:
    """Return the equations and constants that the results depend on."""
    needed, equations = set(results), []
    for equation in reversed(builder.equations):
        if equation.output in needed:
            equations.append(equation)
            needed.update(equation.inputs)
    constants = {name: x for name, x in builder.constants.items() if name in needed}
    return tuple(reversed(equations)), constants


def _port(named: Named) -> Port:
    return Port(named.name, named.shape, str(named.dtype))


def _names(root: str, tree: Any) -> list[str]:
    """Return one name per leaf of `tree`: `root` for a single array, otherwise `root.KEY`."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    parts = (jax.tree_util.keystr(path, simple=True, separator=".") for path in paths)
    return [f"{root}.{part}" if part else root for part in parts]


def _numbered(tree: Any) -> Any:
    """Return a tree of dicts and lists with the index of each leaf in its place."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {str(name): plain(inner) for name, inner in part.items()}
        return [plain(inner) for inner in part] if isinstance(part, tuple | list) else part

    leaves, structure = jax.tree.flatten(tree)
    return plain(jax.tree.unflatten(structure, range(len(leaves))))
