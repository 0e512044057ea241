"""Random numbers of all steps of a scan, drawn before the first one.

A step of a few environments draws few numbers, and a CPU spends more on starting a generator's loop
than on its work; an accelerator launches as many kernels for one step's numbers as for those of
all. What a step computes from its key alone does not have to wait for the step before.
"""

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.extend.core import primitives

from purejaxppo.aliases import Key, T, Tree

LARGEST = 2**24
"""Bytes that are drawn and kept for all steps; if it were more, each step draws its own."""

GENERATORS = (
    primitives.random_bits_p,
    primitives.random_fold_in_p,
    primitives.random_split_p,
)
"""Operations on keys, which may make large results of small ones."""
CALLS = ("ffi_call", "pure_callback")
"""Names of operations that call the host without an effect that says so."""


def scan(step: Callable[[T, Key], tuple[T, Tree]], first: T, keys: Key) -> tuple[T, Tree]:
    """`jax.lax.scan` of a step over its keys, with the same results up to rounding; see `ahead`.

    Args:
        step: (carried, key) -> (carried, row).
        first: carried into the first step.
        keys: of the steps [T].
    """
    drawn, rest = ahead(lambda key, carried: step(carried, key), keys, first)
    return jax.lax.scan(lambda carried, own: rest(own, carried), first, drawn, length=len(keys))


def ahead(function: Callable[..., T], keys: Key, *example: Tree) -> tuple[Tree, Callable[..., T]]:
    """(what is computed of T keys at once [T, ...], the function of one's share of that).

    Operations that depend on a key alone are computed for all keys at once, under `vmap` (with
    which keys of `jax.random.key`'s default kind draw what they draw alone). Those that make large
    results of small ones (a picture of a position), loops, branches and calls of the host stay in
    the function.

    Args:
        function: (key, *arguments) -> results.
        keys: of its calls [T].
        example: arguments of one call, of which shapes are read.
    """
    one = jax.ShapeDtypeStruct(keys.shape[1:], keys.dtype)
    closed, out = jax.make_jaxpr(function, return_shape=True)(one, *example)
    plan = Plan(closed)
    if len(keys) * plan.bytes > LARGEST:
        return keys, function

    def draw(key: Key) -> list[Any]:
        return plan.run(Kind.EARLY, {plan.key: key}, plan.drawn)

    def rest(drawn: list[Any], *arguments: Tree) -> T:
        given = [*jax.tree.leaves(arguments), *drawn]
        values = dict(zip([*plan.arguments, *plan.drawn], given, strict=True))
        results = plan.run(Kind.LATE, values, plan.results)
        result: T = jax.tree.unflatten(jax.tree.structure(out), results)
        return result

    return jax.vmap(draw)(keys), rest


class Kind(enum.Enum):
    """Dependence of a value."""

    CONSTANT = "nothing"
    EARLY = "the key alone"
    LATE = "other arguments, too"


class Operation(NamedTuple):
    """One operation of a function; values are numbered."""

    kind: Kind
    equation: core.JaxprEqn
    inputs: list[int]
    outputs: list[int]


class Plan:
    """The operations of a traced function, and which of them need no more than its key.

    Args:
        closed: the function, (key, leaves of its other arguments) -> results.
    """

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        """Goes through the function once."""
        self.bytes = 0  # of the random numbers of a call, and of what is kept for it
        self.kinds: list[Kind] = []
        self.known: dict[int, Any] = {}
        self.operations: list[Operation] = []
        self.key, *self.arguments = [self.value(Kind.LATE) for _ in closed.in_avals]
        self.kinds[self.key] = Kind.EARLY
        self.sizes = {self.key: size_of(closed.jaxpr.invars[0])}
        self.results = self.add(closed, [self.key, *self.arguments])
        read = {i for each in self.operations if each.kind is Kind.LATE for i in each.inputs}
        read |= {*self.results}
        self.drawn = sorted(i for i in read if self.kinds[i] is Kind.EARLY)
        self.bytes += sum(self.sizes[i] for i in self.drawn)

    def value(self, kind: Kind) -> int:
        """A new value's number."""
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def constant(self, x: Any) -> int:
        """The number of a value that is known; arrays stay with what uses them."""
        number = self.value(Kind.LATE if getattr(x, "ndim", 0) else Kind.CONSTANT)
        self.known[number] = x
        return number

    def add(self, closed: core.ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        """Adds a function's operations; returns the numbers of its results."""
        jaxpr = closed.jaxpr
        constants = [self.constant(x) for x in closed.consts]
        numbers = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

        def number(var: Any) -> int:
            return self.constant(var.val) if isinstance(var, core.Literal) else numbers[var]

        for equation in jaxpr.eqns:
            given = [number(var) for var in equation.invars]
            kinds = {self.kinds[i] for i in given}
            if equation.primitive is primitives.jit_p and Kind.EARLY in kinds:
                outputs = self.add(equation.params["jaxpr"], given)
            else:
                kind = self.kind_of(equation, given)
                outputs = [self.value(kind) for _ in equation.outvars]
                sizes = [size_of(var) for var in equation.outvars]
                self.sizes.update(zip(outputs, sizes, strict=True))
                self.operations.append(Operation(kind, equation, given, outputs))
            numbers.update(zip(equation.outvars, outputs, strict=True))
        return [number(var) for var in jaxpr.outvars]

    def kind_of(self, equation: core.JaxprEqn, inputs: Sequence[int]) -> Kind:
        """Kind of an operation's results, late also where the operation is to stay."""
        kinds = {self.kinds[i] for i in inputs}
        has_body = any(True for _ in core.jaxprs_in_params(equation.params))
        stays = equation.effects or has_body or equation.primitive.name in CALLS
        if Kind.LATE in kinds or stays:
            return Kind.LATE
        if Kind.EARLY not in kinds:
            return Kind.CONSTANT
        size = sum(size_of(var) for var in equation.outvars)
        if equation.primitive in GENERATORS:
            self.bytes += size
            return Kind.EARLY
        given = sum(self.sizes[i] for i in {*inputs} if self.kinds[i] is Kind.EARLY)
        return Kind.EARLY if size <= given else Kind.LATE

    def run(self, kind: Kind, values: dict[int, Any], results: Sequence[int]) -> list[Any]:
        """Computes the operations of a kind, and those on constants alone."""
        values = self.known | values
        for each, equation, inputs, outputs in self.operations:
            if each not in (kind, Kind.CONSTANT):
                continue
            primitive, scope = equation.primitive, str(equation.source_info.name_stack)
            named = jax.named_scope(scope) if scope else contextlib.nullcontext()
            with named, equation.ctx.manager:
                params = primitive.get_bind_params(equation.params)
                out = primitive.bind(*[values[i] for i in inputs], **params)
            values.update(zip(outputs, out if primitive.multiple_results else [out], strict=True))
        return [values[i] for i in results]


def size_of(var: Any) -> int:
    """Bytes of a traced value."""
    return int(var.aval.size * var.aval.dtype.itemsize)
