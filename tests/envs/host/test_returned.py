"""Return values of reset and step: rewards and flags of all types, and Gym's old interface."""

from decimal import Decimal
from fractions import Fraction

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from support.spec import make_spec

from purejaxppo.envs.host.workers.pool import WorkerError, WorkerPool
from purejaxppo.envs.host.workers.returned import to_bool, to_float

pytestmark = pytest.mark.xdist_group("processes")
STEP = "Return (obs, reward, terminated, truncated, info), as in Gymnasium."
RESET = "Return (obs, info), as in Gymnasium."
DICT = "Return (obs, info), as in Gymnasium, with a dict as info."
SEED = "Define reset(self, *, seed=None, options=None), as in Gymnasium."


class Still(gymnasium.Env):
    """An environment with reward 1.0 per step that does not end."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


class RewardOfOne(Still):
    def step(self, action):
        return np.zeros(2, np.float32), np.array([1.0]), np.array([False]), 1, {}


class ResetOfNothing(Still):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)


class RewardOfNothing(Still):
    def step(self, action):
        return np.zeros(2, np.float32), None, False, False, {}


class EndOfNothing(Still):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, None, False, {}


class InfoBeforeTruncated(Still):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}, False


class OldStep(Still):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}


class OldStepWithLimit(OldStep):
    max_episode_steps = 20  # in a TimeLimit, which unpacks the result


class StepOfThree(Still):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False


class OldReset(Still):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class OldResetOfPair(OldReset):
    observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])

    def reset(self, *, seed=None, options=None):
        return 0, 1


class ResetOfThree(Still):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}, 1


class ResetWithList(Still):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), [("speed", 1.0)]


class StepWithList(Still):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, ["speed"]


class NoText(Exception):
    def __str__(self):
        raise ValueError


class RaisesNoText(Still):
    def step(self, action):
        raise NoText


class Interrupts(Still):
    def step(self, action):
        raise KeyboardInterrupt("by the simulator")


class NoSeed(Still):
    def reset(self):
        return np.zeros(2, np.float32), {}


class NoSeedWithLimit(NoSeed):
    max_episode_steps = 20


class UnpacksItsOwn(Still):
    """An environment that raises an unpacking error."""

    def step(self, action):
        obs, reward, terminated, truncated, info = (1, 2, 3, 4)
        return obs, reward, terminated, truncated, info


def play(name, **options):
    spec = make_spec(f"{__file__}:{name}", **options)
    with WorkerPool(spec, 1, kind="thread") as pool:
        pool.reset(0)
        return pool.step(np.zeros(1, int))


def test_a_reward_and_ends_may_be_arrays_of_one_value():
    row = play("RewardOfOne")
    assert (row.reward[0], row.terminated[0], row.truncated[0]) == (1.0, False, True)


OLD = [
    ("RewardOfNothing", "step returned reward = None. Return a single number."),
    ("EndOfNothing", "step returned terminated = None. Return True or False."),
    ("InfoBeforeTruncated", "step returned truncated = {}. Return True or False."),
    ("OldStep", f"step returned 4 values, as in Gym before 0.26. {STEP}"),
    ("OldStepWithLimit", f"step returned 4 values, as in Gym before 0.26. {STEP}"),
    ("StepOfThree", f"(expected 5, got 3)). {STEP}"),
    ("ResetOfNothing", f"reset returned None. {RESET}"),
    ("OldReset", f"reset returned only an observation, as in Gym before 0.26. {RESET}"),
    ("OldResetOfPair", f"reset returned a tuple of int, int. {DICT}"),
    ("ResetOfThree", f"reset returned a tuple of ndarray, dict, int. {DICT}"),
    ("ResetWithList", f"reset returned a tuple of ndarray, list. {DICT}"),
    ("NoSeed", f"reset does not accept seed and options, as in Gym before 0.26. {SEED}"),
    (
        "NoSeedWithLimit",
        f"reset does not accept seed and options, as in Gym before 0.26. {SEED}",
    ),
]


@pytest.mark.parametrize(("name", "sentence"), OLD)
def test_results_unlike_gymnasiums_get_a_one_line_error(name, sentence):
    with pytest.raises(ValueError) as caught:
        play(name)
    text = str(caught.value)
    assert text.endswith(sentence)
    assert "\n" not in text


def test_an_info_that_is_not_a_dict_gets_a_one_line_error():
    spec = make_spec(f"{__file__}:StepWithList")
    with WorkerPool(spec, 1, kind="thread", metrics=("speed",)) as pool:
        pool.reset(0)
        with pytest.raises(ValueError, match=r"step returned a list as info\. Return") as e:
            pool.step(np.zeros(1, int))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("name", "words"), [("RaisesNoText", "NoText in step: NoText"), ("Interrupts", "by the sim")]
)
def test_unusual_exceptions_keep_their_traceback(name, words):
    with pytest.raises(WorkerError, match=words) as caught:
        play(name)
    assert "Traceback" in str(caught.value)


def test_reset_without_info_is_reported_under_a_wrapper_that_unpacks_it():
    with pytest.raises(ValueError, match="reset returned only an observation"):
        play("OldReset", mask=True)


def test_other_unpacking_errors_keep_their_traceback():
    with pytest.raises(WorkerError, match="in step: not enough values") as caught:
        play("UnpacksItsOwn")
    assert "Traceback" in str(caught.value)


ONES = (1, 1.0, True, np.float64(1), np.int8(1), np.True_, np.array(1.0), np.ones((1, 1)), [1])
ONES += (jnp.float32(1), jnp.ones(1, jnp.bfloat16), Fraction(2, 2), Decimal(1))


@pytest.mark.parametrize("value", ONES, ids=repr)
def test_the_number_1_of_any_type_is_a_valid_reward_and_flag(value):
    reward, end = to_float(value, "reward"), to_bool(value, "terminated")
    assert (type(reward), reward, end) == (float, 1.0, True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(2), r"reward of shape \(2,\)"),
        (np.ones(0), r"reward of shape \(0,\)"),
        ("1.0", "reward = '1.0'"),
        (1j, "reward = 1j"),
        ({"a": 1.0}, r"reward = {'a': 1.0}"),
        (None, "reward = None"),
    ],
)
def test_a_reward_that_is_not_one_number_is_an_error(value, words):
    with pytest.raises(ValueError, match=rf"^step returned {words}. Return a single number.$"):
        to_float(value, "reward")


def test_nan_and_infinite_rewards_are_accepted_by_the_conversion():
    assert np.isnan(to_float(np.array([np.nan]), "reward"))
    assert to_float(float("inf"), "reward") == np.inf


@pytest.mark.parametrize("value", [None, 2, 0.5, np.nan, "False", np.zeros(2, bool), {}])
def test_a_flag_that_is_not_true_or_false_is_an_error(value):
    with pytest.raises(ValueError, match=r"^step returned truncated .*. Return True or False.$"):
        to_bool(value, "truncated")
