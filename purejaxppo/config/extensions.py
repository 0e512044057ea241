"""Extension points: the fields of a config that accept custom code, and the code that each expects.

A point accepts a function, an object with certain attributes, or a class or function that makes
such an object. Functions are traced before anything is compiled. Objects are made once on the host
and inspected; their methods are traced where the training uses them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from purejaxppo.config import tracing
from purejaxppo.config.references import CodeRef, load


class Point(NamedTuple):
    """An extension point."""

    field: str
    """Field of a config, by dotted name."""
    example: str
    """A value, as on docs/own_code.md."""
    signature: str
    """Arguments of the function, or of the class or function that makes the object."""
    attributes: tuple[tuple[str, ...], ...] = ()
    """Groups of attributes; an object must have all of one group. Empty: only functions."""
    function: bool = False
    """True if a function can be the extension itself."""
    types: tuple[type, ...] = ()
    """Types whose objects are accepted without these attributes."""
    family: str = ""
    """What precedes the reference in the field, such as `jax/`."""


_TASK = ("observation", "action", "reset", "step")
_GYMNAX = ("reset_env", "step_env", "observation_space", "action_space")
_TORSOS = (("init", "apply"), ("actor", "critic"))
_DISTRIBUTION = ("num_params", "sample", "mode", "log_prob", "entropy", "to_env", "from_env")
_TERM = ("loss", "rows", "init", "name")
_INTRINSIC = ("init", "reward", "update", "figures", "track")
_EVENTS = (("on_start",), ("on_log",), ("on_evaluation",), ("on_save",), ("on_end",))
_ROWS = "(log_ratio [B], advantage [B], hp)"
_ROLLOUT = "(transitions, reward, predictions, hp)"

TASK = Point("env.name", "jax/walk.py:Walk", "(**env.options)", (_TASK,), family="jax/")
GYMNAX = Point(
    "env.name", "gymnax/cart.py:make", "()", (_GYMNAX,), types=(tuple,), family="gymnax/"
)
WRAPPER = Point("env.wrappers", "scaled.py:Scaled", "(task)", (_TASK,))
TORSO = Point("network.torso", "net.py:Net", "() or (config)", _TORSOS)
DISTRIBUTION = Point("network.distribution", "unit.py:unit_normal", "(size)", (_DISTRIBUTION,))
OBJECTIVE = Point("ppo.objective", "mine.py:objective", _ROWS, function=True)
TERM = Point("ppo.terms", "mine.py:predict_next", "(outputs, rows)", (_TERM,), function=True)
ADVANTAGE = Point("ppo.advantage", "mine.py:one_step", _ROLLOUT, function=True)
INTRINSIC = Point("intrinsic.kind", "bonus.py:make", "(config, spec)", (_INTRINSIC,))
OPTIMIZER = Point("ppo.optimizer", "mine.py:optimizer", "(config)", (("init", "update"),))
SCHEDULE = Point("ppo.learning_rate_schedule", "mine.py:warm", "(progress [])", function=True)
CALLBACK = Point("callbacks", "watch.py:Watch", "(context)", _EVENTS, function=True)
CURRICULUM = Point("env.curriculum", "mine.py:gravity", "(progress [])", function=True)
OPPONENT = Point("eval.options", "saved.py:saved", "(key, obs [1, ...])", function=True)
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
        ValueError: it cannot be loaded or made, or the point does not accept it.
    """
    found = load(value, point.field)
    where = f"{point.field} = {point.family}{value}"
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


def load_function(
    point: Point,
    value: str | CodeRef,
    *args: Any,
    expected: Any,
    field: str = "",
    convert: Callable[[Any], Any] = lambda result: result,
    finite: bool = False,
) -> Any:
    """Return the function of a reference, traced with arrays or shapes of its arguments.

    Args:
        point: the extension point.
        value: of its field.
        args: arrays, or shapes of arrays.
        expected: shapes of the result.
        field: the field, if the point has several.
        convert: applied to results.
        finite: check that the result for `args` is finite.

    Raises:
        ValueError: it cannot be loaded or traced, or has other arguments or another result.
    """
    field = field or point.field
    loaded, where = load(value, field), f"{field} = {value}"
    tracing.check_arguments(loaded, where, point.signature, len(args))

    def converted(*args: Any) -> Any:
        return convert(loaded(*args))

    tracing.check(converted, where, point.signature, *args, expected=expected)
    if finite:
        tracing.check_finite(converted, where, *args)
    return converted
