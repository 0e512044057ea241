"""Extension points: the fields of a config that accept custom code, and the code that each expects.

A point accepts a function, an object with certain attributes, or a class or function that makes
such an object. Functions are traced before anything is compiled; objects are made once on the host
and inspected, and their methods are traced where a part of the training is made of them.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from purejaxppo.config import tracing
from purejaxppo.config.references import CodeRef, is_reference, load, neither
from purejaxppo.config.schema import HINTS


@dataclass(frozen=True)
class Point:
    """An extension point."""

    field: str
    """Field of a config, by dotted name."""
    example: str
    """A reference, as on docs/own_code.md."""
    about: str
    """The code that a reference names, in words, as on docs/own_code.md."""
    signature: str
    """Arguments of the function or, of an object, of the class or function that makes it."""
    attributes: tuple[tuple[str, ...], ...] = ()
    """Attributes of the object: all of one of these groups; empty: no object is accepted."""
    types: tuple[type, ...] = ()
    """Types whose objects are accepted without these attributes."""
    function: bool = False
    """True if a function is the extension, and makes no object."""


_TASK = ("observation", "action", "reset", "step")
TASK = Point(
    field="env.name",
    example="jax/walk.py:Walk",
    about="a `Task`, or a class or function that makes one of `env.options`",
    signature="(**env.options)",
    attributes=(_TASK,),
)
GYMNAX = Point(
    field="env.name",
    example="gymnax/cart.py:make",
    about="an environment, or what makes one or (environment, parameters)",
    signature="()",
    attributes=(("reset_env", "step_env", "observation_space", "action_space"),),
    types=(tuple,),
)
WRAPPER = Point(
    field="env.wrappers",
    example="scaled.py:Scaled",
    about="task -> task; also a transform of rewards or observations",
    signature="(task)",
    attributes=(_TASK,),
)
TORSO = Point(
    field="network.torso",
    example="net.py:Net",
    about="a flax.linen module, observations -> features, or any object with `init` and `apply`, "
    "or a `Torso`",
    signature="() or (config)",
    attributes=(("init", "apply"), ("actor", "critic")),
)
DISTRIBUTION = Point(
    field="network.distribution",
    example="unit.py:unit_normal",
    about="size -> `Distribution`, for continuous actions",
    signature="(size)",
    attributes=(("num_params", "sample", "mode", "log_prob", "entropy", "to_env", "from_env"),),
)
OBJECTIVE = Point(
    field="ppo.objective",
    example="mine.py:objective",
    about="(log_ratio [B], advantage [B], hp) -> loss [B]",
    signature="(log_ratio [B], advantage [B], hp)",
    function=True,
)
TERM = Point(
    field="ppo.terms",
    example="mine.py:predict_next",
    about="(outputs, rows) -> [B], or a `Term` with parameters of its own",
    signature="(outputs, rows)",
    attributes=(("loss", "rows", "init", "name"),),
    function=True,
)
ADVANTAGE = Point(
    field="ppo.advantage",
    example="mine.py:one_step",
    about="(transitions, reward, predictions, hp) -> (advantage, target), [T, N] each",
    signature="(transitions, reward, predictions, hp)",
    function=True,
)
INTRINSIC = Point(
    field="intrinsic.kind",
    example="bonus.py:make",
    about="an `Intrinsic`, or (config, spec) -> `Intrinsic`",
    signature="(config, spec)",
    attributes=(("init", "reward", "update", "figures", "track"),),
)
OPTIMIZER = Point(
    field="ppo.optimizer",
    example="mine.py:optimizer",
    about="`ppo`'s config -> an optax transformation without its step size",
    signature="(config)",
    attributes=(("init", "update"),),
)
SCHEDULE = Point(
    field="ppo.learning_rate_schedule",
    example="mine.py:warm",
    about="progress [], 0 to 1 -> factor []; also `clip_`, `ent_` and `intrinsic_schedule`",
    signature="(progress [])",
    function=True,
)
CALLBACK = Point(
    field="callbacks",
    example="watch.py:Watch",
    about="a function of a `Moment`, or a `Callback`; on the host, between chunks",
    signature="(moment)",
    attributes=(("on_start",), ("on_log",), ("on_evaluation",), ("on_save",), ("on_end",)),
    function=True,
)
CURRICULUM = Point(
    field="env.curriculum",
    example="mine.py:gravity",
    about="progress [] -> value []",
    signature="(progress [])",
    function=True,
)
OPPONENT = Point(
    field="eval.options",
    example="saved.py:saved",
    about="(key, obs [N, ...]) -> action [N], as of a saved agent",
    signature="(key, obs [1, ...])",
    function=True,
)
POINTS = (
    *(TASK, GYMNAX, WRAPPER, TORSO, DISTRIBUTION, OBJECTIVE, TERM, ADVANTAGE, INTRINSIC, OPTIMIZER),
    *(SCHEDULE, CALLBACK, CURRICULUM, OPPONENT),
)
"""All extension points, in the order of docs/own_code.md."""


def make(point: Point, value: str | CodeRef, *args: Any, **options: Any) -> Any:
    """Return the object of a reference, or the one that its class or function makes.

    Args:
        point: the extension point.
        value: of its field.
        args: of a class or function that makes the object.
        options: further arguments of it, by name.

    Raises:
        ValueError: it cannot be loaded or made, or is not what the point accepts.
    """
    _check_form(point.field, value)
    found, where = load(value, point.field), f"{point.field} = {value}"
    if accepts(point, found) and options:
        raise ValueError(
            f"{where} is an object, which takes no options. Leave out {', '.join(options)}, or "
            f"name its class."
        )
    if accepts(point, found) or not callable(found):
        check(point, found, f"{where} is")
        return found
    if args:
        tracing.check_arguments(found, where, point.signature, len(args))
    made = tracing.call(found, where, *args, **options)
    check(point, made, f"{where} returns")
    return made


def accepts(point: Point, value: Any) -> bool:
    """True for a function or an object that the point accepts as it is; False for a class."""
    if isinstance(value, type):
        return False
    has_all = any(all(hasattr(value, name) for name in names) for names in point.attributes)
    return has_all or isinstance(value, point.types) or (point.function and callable(value))


def check(point: Point, value: Any, where: str) -> None:
    """Raise ValueError unless the point accepts a value; `where` ends in a verb."""
    if accepts(point, value):
        return
    first = point.attributes[0]
    missing = [name for name in first if not hasattr(value, name)]
    without = f" without {missing[0]!r}" if len(missing) < len(first) else ""
    raise ValueError(f"{where} a {type(value).__name__}{without}. It must be {wanted(point)}.")


def wanted(point: Point) -> str:
    """Describe what a point accepts."""
    groups = " or ".join(", ".join(names) for names in point.attributes)
    if point.function:
        return f"a function {point.signature}, or an object with {groups}"
    return f"an object with {groups}, or a class or function {point.signature} that makes one"


def function(
    point: Point,
    value: str | CodeRef,
    *args: Any,
    gives: Any,
    field: str = "",
    convert: Callable[[Any], Any] = lambda result: result,
) -> Any:
    """Return the function of a reference, traced with arrays or shapes of its arguments.

    Args:
        point: the extension point.
        value: of its field.
        args: arrays, or shapes of arrays.
        gives: shapes of the result.
        field: the field, where the point has several.
        convert: applied to results.

    Raises:
        ValueError: it cannot be loaded or traced, or has other arguments or another result.
    """
    field = field or point.field
    _check_form(field, value)
    loaded, where = load(value, field), f"{field} = {value}"
    tracing.check_arguments(loaded, where, point.signature, len(args))

    def converted(*args: Any) -> Any:
        return convert(loaded(*args))

    tracing.check(converted, where, point.signature, *args, gives=gives)
    return converted


def _check_form(field: str, value: str | CodeRef) -> None:
    """Raise ValueError if a value is neither a built-in's name nor a reference."""
    options = typing.get_args(HINTS.get(field))
    if options and not is_reference(value):
        raise ValueError(neither(value, typing.get_args(options[0]), field))
