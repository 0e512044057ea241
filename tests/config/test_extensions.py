"""Extension points: their rows on the page of custom code, and errors for invalid code."""

from functools import partial

import pytest
from support import own_code as examples
from support.paths import OWN_CODE as FILE
from support.paths import ROOT

from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
from purejaxppo.agents.extras.intrinsic import Intrinsic
from purejaxppo.agents.networks.distributions import Distribution
from purejaxppo.agents.networks.torsos import Torso
from purejaxppo.config import extensions
from purejaxppo.config.checks import settings
from purejaxppo.config.extensions import POINTS
from purejaxppo.config.references import parse
from purejaxppo.config.schema import HINTS, Config
from purejaxppo.learner import Learner
from purejaxppo.runs.callbacks import EVENTS

pytestmark = pytest.mark.toy

PAGE = (ROOT / "docs/own_code.md").read_text(encoding="utf-8")
TASK = "an object with observation, action, reset, step, or a class or function "
WANTED = {
    "jax/walk.py:Walk": TASK + "(**env.options) that returns one",
    "gymnax/cart.py:make": "an object with reset_env, step_env, observation_space, action_space, "
    "or a class or function () that returns one",
    "brax/robot.py:Robot": "an object with reset, step, action_size, unwrapped, or a class or "
    "function (**env.options) that returns one",
    "playground/robot.py:Reach": "an object with reset, step, action_size, unwrapped, mjx_model, "
    "mj_model, or a class or function (config, config_overrides) or (**env.options) that returns "
    "one",
    "scaled.py:Scaled": TASK + "(task) that returns one",
    "net.py:Net": "an object with init, apply or actor, critic, or a class or function () or "
    "(config) that returns one",
    "unit.py:unit_normal": "an object with num_params, sample, mode, log_prob, entropy, to_env, "
    "from_env, or a class or function (size) that returns one",
    "mine.py:predict_next": "a function (outputs, rows), or an object with loss, rows, init, name",
    "counted.py:counted": "an object with learn, init, metric_names, or a class or function "
    "(config) that returns one",
    "bonus.py:make": "an object with init, reward, update, metric_names, track, or a class or "
    "function (config, spec) that returns one",
    "mine.py:optimizer": "an object with init, update, or a class or function (config) that "
    "returns one",
    "board.py:Board": "an object with start, metrics, video, close, or a class or function () that "
    "returns one",
    "watch.py:Watch": "a function (context), or an object with on_start or on_log or on_evaluation "
    "or on_save or on_end",
}
"""The requirement of each point that accepts objects, by its example."""
OBJECTS = [point for point in POINTS if point.attributes]
FUNCTIONS = [point for point in POINTS if not point.attributes]


def by_example(points):
    return pytest.mark.parametrize("point", points, ids=lambda point: point.example)


def sentence(call, *args, **options):
    """Return the one-line error of a call."""
    with pytest.raises(ValueError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@by_example(POINTS)
def test_the_page_of_custom_code_has_a_row_for_each_extension_point(point):
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and point.example in line]
    assert f"`{point.field}: " in row


def test_every_field_that_refers_to_code_is_an_extension_point():
    marked = {name for name, about, _ in settings(Config()) if about.get("code")}
    schedules = {f"ppo.{name}_schedule" for name in ("clip", "ent", "intrinsic")}
    assert marked - schedules < {point.field for point in POINTS} < set(HINTS)


@by_example(OBJECTS)
def test_an_object_of_the_wrong_type_gets_a_one_sentence_error(point):
    message = sentence(extensions.make, point, f"{FILE}:NOTHING")
    what = f"{point.field} = {point.family}{FILE}:NOTHING is a NoneType"
    assert message == f"{what}. It must be {WANTED[point.example]}."


@pytest.mark.parametrize(
    ("point", "args"),
    [
        (extensions.TASK, ()),
        (extensions.GYMNAX, ()),
        (extensions.WRAPPER, (examples.Walk(),)),
        (extensions.TORSO, ()),
        (extensions.DISTRIBUTION, (2,)),
        (extensions.LEARNER, (Config(),)),
        (extensions.INTRINSIC, (Config(), None)),
        (extensions.OPTIMIZER, (Config().ppo,)),
    ],
)
def test_a_function_that_returns_the_wrong_type_gets_a_one_sentence_error(point, args):
    message = sentence(extensions.make, point, f"{FILE}:three", *args)
    what = f"{point.field} = {point.family}{FILE}:three returns a int"
    assert message == f"{what}. It must be {WANTED[point.example]}."
    if args:
        wrong = sentence(extensions.make, point, f"{FILE}:none_of_these", *args)
        assert f"takes (). It must take {point.signature}." in wrong


@by_example(FUNCTIONS)
def test_a_value_that_is_not_a_function_gets_a_one_sentence_error(point):
    message = sentence(extensions.load_function, point, f"{FILE}:NOTHING", expected=None)
    what = f"{point.field} = {point.family}{FILE}:NOTHING is a NoneType"
    assert message == f"{what}. It must be a function {point.signature}."


def test_the_error_names_the_first_missing_attribute():
    class Half:
        observation = action = None

        def reset(self, key):
            """Define only this method."""

    message = sentence(extensions.make, extensions.TASK, parse(Half()))
    assert "is a Half without the attribute 'step'. It must be an object with" in message


@by_example(POINTS)
def test_a_word_that_is_neither_built_in_nor_a_reference_gets_a_one_sentence_error(point):
    call = extensions.make if point.attributes else partial(extensions.load_function, expected=None)
    wrong = f"{point.field} = 'clop': must be a built-in name, or a reference such as file.py:Name."
    assert sentence(call, point, "clop") == wrong


@pytest.mark.parametrize(
    ("point", "record"),
    [
        (extensions.DISTRIBUTION, Distribution),
        (extensions.LEARNER, Learner),
        (extensions.INTRINSIC, Intrinsic),
        (extensions.TERM, AuxiliaryLoss),
        (extensions.TORSO, Torso),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_records_of_the_library_have_the_required_attributes(point, record):
    assert set(record._fields) in [set(names) for names in point.attributes]


def test_an_object_with_any_event_is_a_callback():
    assert tuple((event,) for event in EVENTS) == extensions.CALLBACK.attributes


def test_options_are_passed_to_classes_and_rejected_for_objects():
    message = sentence(extensions.make, extensions.TASK, parse(examples.Walk), sise=1)
    assert "got an unexpected keyword argument 'sise'" in message
    assert extensions.make(extensions.TASK, parse(examples.Walk), size=1.0).size == 1.0
    message = sentence(extensions.make, extensions.TASK, parse(examples.Walk()), size=1.0)
    assert "an object takes no options. Remove size, or refer" in message
