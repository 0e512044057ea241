"""Extension points: the config fields that accept custom code, and the interface of each.

An extension point accepts a function, an object with certain attributes, or a class or function
that returns such an object. Functions are traced before anything is compiled. Objects are created
once on the host; their methods are traced by the code that uses them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from purejaxppo.config import tracing
from purejaxppo.config.env_objects import family_of
from purejaxppo.config.references import CodeRef, load


class Point(NamedTuple):
    """An extension point."""

    field: str
    """Config field, by dotted name."""
    example: str
    """Example value, as in docs/own_code.md."""
    signature: str
    """Arguments of the function, or of the class or function that returns the object."""
    attributes: tuple[tuple[str, ...], ...] = ()
    """Groups of attributes. An object must have all of one group. Empty: only functions."""
    function: bool = False
    """True if the extension may be a function."""
    types: tuple[type, ...] = ()
    """Types whose instances are accepted without these attributes."""
    family: str = ""
    """Prefix of the reference in the field, such as `jax/`."""


_TASK = ("observation", "action", "reset", "step")
_GYMNAX = ("reset_env", "step_env", "observation_space", "action_space")
_ROBOT = ("reset", "step", "action_size", "unwrapped")
_TORSOS = (("init", "apply"), ("actor", "critic"))
_DISTRIBUTION = ("num_params", "sample", "mode", "log_prob", "entropy", "to_env", "from_env")
_TERM = ("loss", "rows", "init", "name")
_LEARNER = ("learn", "init", "metric_names")
_INTRINSIC = ("init", "reward", "update", "metric_names", "track")
_EVENTS = (("on_start",), ("on_log",), ("on_evaluation",), ("on_save",), ("on_end",))
_LOGGER = ("start", "metrics", "video", "close")
_ROWS = "(log_ratio [B], advantage [B], hp)"
_ROLLOUT = "(transitions, reward, predictions, hp)"

TASK = Point("env.name", "jax/walk.py:Walk", "(**env.options)", (_TASK,), family="jax/")
GYMNAX = Point(
    "env.name", "gymnax/cart.py:make", "()", (_GYMNAX,), types=(tuple,), family="gymnax/"
)
BRAX = Point("env.name", "brax/robot.py:Robot", "(**env.options)", (_ROBOT,), family="brax/")
PLAYGROUND = Point(
    "env.name",
    "playground/robot.py:Reach",
    "(config, config_overrides) or (**env.options)",
    ((*_ROBOT, "mjx_model", "mj_model"),),
    family="playground/",
)
RANDOMIZATION = Point("env.options", "robot.py:masses", "(model, keys [N, 2])", function=True)
WRAPPER = Point("env.wrappers", "scaled.py:Scaled", "(task)", (_TASK,))
TORSO = Point("network.torso", "net.py:Net", "() or (config)", _TORSOS)
DISTRIBUTION = Point("network.distribution", "unit.py:unit_normal", "(size)", (_DISTRIBUTION,))
OBJECTIVE = Point("ppo.objective", "mine.py:objective", _ROWS, function=True)
TERM = Point("ppo.terms", "mine.py:predict_next", "(outputs, rows)", (_TERM,), function=True)
ADVANTAGE = Point("ppo.advantage", "mine.py:one_step", _ROLLOUT, function=True)
LEARNER = Point("ppo.learner", "counted.py:counted", "(config)", (_LEARNER,))
INTRINSIC = Point("intrinsic.kind", "bonus.py:make", "(config, spec)", (_INTRINSIC,))
OPTIMIZER = Point("ppo.optimizer", "mine.py:optimizer", "(config)", (("init", "update"),))
SCHEDULE = Point("ppo.learning_rate_schedule", "mine.py:warm", "(progress [])", function=True)
CALLBACK = Point("callbacks", "watch.py:Watch", "(context)", _EVENTS, function=True)
LOGGER = Point("logging.loggers", "board.py:Board", "()", (_LOGGER,))
CURRICULUM = Point("env.curriculum", "mine.py:gravity", "(progress [])", function=True)
OPPONENT = Point("eval.options", "saved.py:saved", "(key, obs [1, ...])", function=True)
POINTS = (
    *(TASK, GYMNAX, BRAX, PLAYGROUND, RANDOMIZATION, WRAPPER, TORSO, DISTRIBUTION, OBJECTIVE, TERM),
    *(ADVANTAGE, LEARNER, INTRINSIC, OPTIMIZER, SCHEDULE, CALLBACK, LOGGER, CURRICULUM, OPPONENT),
)
"""All extension points, in the order of docs/own_code.md."""


def make(point: Point, value: str | CodeRef, *args: Any, **options: Any) -> Any:
    """Return the object of a reference; a class or function is called first.

    Args:
        point: the extension point.
        value: value of its field.
        args: positional arguments of the class or function.
        options: keyword arguments of the class or function.

    Raises:
        ValueError: the reference cannot be loaded or called, or the result lacks an attribute.
    """
    loaded = load(value, point.field)
    where = f"{point.field} = {point.family}{value}"
    if accepts(point, loaded) and options:
        raise ValueError(
            f"{where}: an object takes no options. Remove {', '.join(options)}, or refer to its "
            f"class."
        )
    if accepts(point, loaded) or not callable(loaded):
        check(point, loaded, f"{where} is")
        return loaded
    if args:
        tracing.check_arguments(loaded, where, point.signature, len(args))
    result = tracing.call(loaded, where, *args, **options)
    check(point, result, f"{where} returns")
    return result


def accepts(point: Point, value: Any) -> bool:
    """Return True for an accepted function or object, False for others and for classes."""
    if isinstance(value, type):
        return False
    has_all = any(all(hasattr(value, name) for name in names) for names in point.attributes)
    return has_all or isinstance(value, point.types) or (point.function and callable(value))


def check(point: Point, value: Any, where: str) -> None:
    """Raise ValueError if the point does not accept a value; `where` ends with a verb."""
    if accepts(point, value):
        return
    first = point.attributes[0]
    missing = [name for name in first if not hasattr(value, name)]
    without = f" without the attribute {missing[0]!r}" if len(missing) < len(first) else ""
    family = family_of(value) if point.family else None
    if family:
        raise ValueError(
            f"{where} a {type(value).__name__}, an environment of the family {family}. Use "
            f"{family}/ instead of {point.family} in {point.field}."
        )
    raise ValueError(f"{where} a {type(value).__name__}{without}. It must be {interface(point)}.")


def interface(point: Point) -> str:
    """Describe the functions and objects that a point accepts."""
    groups = " or ".join(", ".join(names) for names in point.attributes)
    if point.function:
        return f"a function {point.signature}, or an object with {groups}"
    return f"an object with {groups}, or a class or function {point.signature} that returns one"


def load_function(
    point: Point,
    value: str | CodeRef,
    *args: Any,
    expected: Any,
    field: str = "",
    convert: Callable[[Any], Any] = lambda result: result,
    finite: bool = False,
) -> Any:
    """Load a function, and check it by tracing it.

    Args:
        point: the extension point.
        value: value of its field.
        args: arrays, or shapes of arrays, to trace with.
        expected: shapes of the result.
        field: the field; empty: `point.field`.
        convert: function that is applied to results.
        finite: whether to check that the result for `args` is finite.

    Returns:
        The function, followed by `convert`.

    Raises:
        ValueError: it cannot be loaded or traced, or its arguments or result are wrong.
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
