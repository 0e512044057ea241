"""Observations of Gymnasium spaces: valid values, and errors for all others."""

import numpy as np
import pytest
from gymnasium import spaces

from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.host.workers.gym_spaces import (
    action_space,
    encoder,
    observation_space,
    sources,
)
from purejaxppo.envs.host.workers.masks import mask_in

BYTES = spaces.Box(0, 255, (2,), np.uint8)
WHOLE = spaces.Box(0, 1, (2,), int)
NARROW = spaces.Box(-5, 5, (2,), np.int8)
LARGE = spaces.Box(-np.inf, np.inf, (2,), np.int64)
TRUTH = spaces.Box(0, 1, (2,), bool)
FLOATS = spaces.Box(-1, 1, (2,), np.float64)
BITS = spaces.MultiBinary(2)
TWO = spaces.Discrete(2)
FROM_5 = spaces.Discrete(3, start=5)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[0, 10])
NESTED = spaces.Dict({"a": spaces.Tuple((FLOATS, TWO)), "action_mask": BYTES})
INT32 = "integers from -2147483648 to 2147483647"


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (BYTES, np.array([0, 255], np.int64), [0, 255]),
        (BYTES, [3.0, 4.0], [3, 4]),
        (BYTES, np.array([True, False]), [1, 0]),
        (WHOLE, [-7, 2**31 - 1], [-7, 2**31 - 1]),  # outside of the bounds, but within int32
        (WHOLE, np.array([2.0, 3.0], object), [2, 3]),
        (NARROW, np.array([-128, 127], np.int16), [-128, 127]),
        (LARGE, [2**40, -(2**40)], [2.0**40, -(2.0**40)]),
        (TRUTH, [1.0, 0.0], [1, 0]),
        (FLOATS, [-9.5, 1e9], [-9.5, 1e9]),
        (FLOATS, np.array([2, 3], np.uint8), [2, 3]),
        (FLOATS, np.array([0.5, None], object), [0.5, np.nan]),  # NaN is contained later
        (FLOATS, np.array([0.5, -1.5], ">f8"), [0.5, -1.5]),
        (BITS, np.array([1, 0], np.int8), [1, 0]),
        (TWO, 1, 1),
        (TWO, True, 1),
        (TWO, np.float32(1), 1),
        (FROM_5, np.int64(7), 2),
        (SEVERAL, [1, 12], [1, 2]),
        (SEVERAL, [1.0, 10.0], [1, 0]),
    ],
)
def test_valid_values_of_a_space_are_stored_unchanged(space, obs, expected):
    np.testing.assert_array_equal(encoder(space)(obs), expected)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (
            BYTES,
            [0.64, 1.0],
            "[0] = 0.64, but its space (Box, uint8) contains integers from 0 to",
        ),
        (BYTES, [0, -1], "[1] = -1, but its space (Box, uint8) contains integers from 0 to 255."),
        (BYTES, [0, 256], "[1] = 256, but"),
        (BYTES, [0, np.nan], "[1] = nan, but"),
        (BYTES, np.float32([0.64, 1]), "[0] = 0.64, but"),
        (WHOLE, [1.0, 0.5], f"[1] = 0.5, but its space (Box, int64) contains {INT32}."),
        (WHOLE, [2**31, 0], f"[0] = {2**31}, but its space (Box, int64) contains {INT32}."),
        (WHOLE, np.float32([2**31, 0]), "[0] = 2.1474836e+09, but"),
        (WHOLE, np.array([None, 0], object), "[0] = None, but"),
        (NARROW, [128, 0], "[0] = 128, but its space (Box, int8) contains integers from -128 to"),
        (LARGE, [0.5, 0], "[0] = 0.5, but its space (Box, int64) contains integers"),
        (TRUTH, [2, 0], "[0] = 2, but its space (Box, bool) contains integers from 0 to 1."),
        (FLOATS, [1j, 0], " has dtype complex128, but its space (Box, float64) contains real"),
        (FLOATS, ["1", "2"], " has dtype <U1, but"),
        (FLOATS, np.array([{}, 0], object), " has dtype object, but"),
        (
            BITS,
            [1, 2],
            "[1] = 2, but its space (MultiBinary, int8) contains integers from 0",
        ),
        (
            TWO,
            3,
            " = 3, but its space (Discrete(2)) contains integers from 0 to 1. Return integers ",
        ),
        (TWO, -1, " = -1, but"),
        (TWO, 0.5, " = 0.5, but"),
        (FROM_5, 0, " = 0, but its space (Discrete(3, start=5)) contains integers from 5 to 7."),
        (FROM_5, np.uint64(8), " = 8, but"),
        (
            SEVERAL,
            [1, 13],
            "[1] = 13, but its space (MultiDiscrete) contains integers from 10",
        ),
        (
            SEVERAL,
            [2, 10],
            "[0] = 2, but its space (MultiDiscrete) contains integers from 0 to",
        ),
        (FLOATS, [1.0, 2.0, 3.0], " has shape (3,), but its space has shape (2,). Return an array"),
    ],
)
def test_the_first_value_outside_its_space_is_an_error(space, obs, message):
    with pytest.raises(MakeError) as caught:
        encoder(space)(obs)
    assert str(caught.value).startswith(f"observation{message}")
    whole = spaces.Dict({"part": spaces.Tuple((TWO, space))})
    with pytest.raises(MakeError) as caught:
        encoder(whole, tuple(sources(whole, "wolf: observation")))({"part": (0, obs)})
    assert str(caught.value).startswith(f"wolf: observation.part.1{message}")


PARTS = "Return every part of the observation space, or change the space."


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"b": (0, [0, 0])}, ".a is missing from a dict with the keys 'b'"),
        ({}, ".a is missing from a dict with the keys (none)"),
        (None, ".a is missing from None"),
        (np.zeros(3), ".a is missing from a value of type ndarray, which has no parts"),
        ({"a": 1, "b": (0,)}, ".b.1 is missing from a tuple of length 1"),
        ({"a": 1, "b": 7}, ".b.0 is missing from a value of type int, which has no parts"),
        (
            {"a": 1, "b": {"0": 0, "1": [0, 0]}},
            ".b.0 is missing from a dict with the keys '0', '1'",
        ),
        ([1, (0, [0, 0])], ".a is missing from a list of length 2"),
    ],
)
def test_the_error_of_a_missing_part_names_the_part_and_the_value(obs, message):
    space = spaces.Dict({"a": TWO, "b": spaces.Tuple((TWO, FLOATS))})
    with pytest.raises(MakeError) as caught:
        encoder(space)(obs)
    assert str(caught.value) == f"observation{message}. {PARTS}"


@pytest.mark.parametrize(
    ("obs", "value"), [(None, "None"), ([[1, 2], [3]], "a list of arrays with different shapes")]
)
def test_an_observation_that_is_not_an_array_is_an_error(obs, value):
    with pytest.raises(MakeError) as caught:
        encoder(FLOATS)(obs)
    assert str(caught.value) == (
        f"observation is {value}, but its space has shape (2,). Return an array of that shape in "
        f"the environment or a wrapper, or change the space."
    )


def test_mask_values_other_than_0_and_1_are_an_error_for_every_dtype():
    encode = encoder(NESTED)
    rest = {"a": (np.zeros(2), 0)}
    for mask in ([1.0, 0.0], [True, False], np.uint8([1, 0])):
        assert encode(rest | {"action_mask": mask})["action_mask"].tolist() == [1, 0]
    for mask, value in (([0.5, 1], "[0] = 0.5"), ([1, 2], "[1] = 2"), ([0, -np.inf], "[1] = -inf")):
        with pytest.raises(MakeError) as caught:
            encode(rest | {"action_mask": mask})
        assert f"action_mask{value}, but its space (action_mask) contains" in str(caught.value)
        with pytest.raises(MakeError, match="game: the action_mask from step has the value"):
            mask_in({"action_mask": mask}, TWO, "game", "step")


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Discrete(201, start=-100), np.int8(100), 200),
        (spaces.Discrete(60_000, start=-30_000), np.int16(29_000), 59_000),
        (spaces.Discrete(10, start=-2), np.uint8(3), 5),
        (spaces.Discrete(3, start=5), 7, 2),
    ],
)
def test_choices_of_small_dtypes_do_not_wrap_around(space, value, expected):
    assert space.contains(value)
    assert encoder(space)(value) == expected


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple(())])
@pytest.mark.parametrize(
    ("convert", "role"), [(observation_space, "observation"), (action_space, "action")]
)
def test_a_composite_space_without_parts_is_rejected(space, convert, role):
    sentence = f"the {role} space contains an empty {type(space).__name__}."
    for tried in (space, spaces.Dict({"a": TWO, "b": space})):
        with pytest.raises(MakeError) as caught:
            convert(tried)
        assert str(caught.value) == sentence
