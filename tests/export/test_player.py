"""The player in numpy: its imports, operations by hand, and bad files."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.paths import ROOT

from purejaxppo.export import onnx_file, player, rewrite
from purejaxppo.export.player import Equation, Port, Program

pytestmark = pytest.mark.toy

# action = 2 obs + carry, or 2 obs at a start. The carry is the last action.
DOUBLE = Program(
    inputs=(
        Port("obs", (1, 2), "float32"),
        Port("carry.0", (1, 2), "float32"),
        Port("start", (1,), "bool"),
    ),
    outputs=(Port("action", (1, 2), "float32"), Port("next_carry.0", (1, 2), "float32")),
    results=("v3", "v3"),
    equations=(
        Equation("mul", ("obs", "two"), "v0", {}),
        Equation("reshape", ("start",), "v1", {"shape": [1, 1]}),
        Equation("select_n", ("v1", "carry.0", "zero"), "v2", {}),
        Equation("add", ("v0", "v2"), "v3", {}),
    ),
    constants={"two": np.float32(2) * np.ones((), np.float32), "zero": np.zeros((1, 2), "f4")},
    initial_carry=(np.zeros((1, 2), np.float32),),
    obs=0,
    action=0,
    metadata={"env": "made/by-hand", "training_steps": 3, "version": "0"},
)


@pytest.fixture
def double(tmp_path):
    path = tmp_path / "double.npz"
    player.write(DOUBLE, path)
    return path


def rewritten(path, change):
    """Rewrite the file with its header and arrays changed by `change(header, arrays)`."""
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, header=encoded, **arrays)
    return path


def test_a_loaded_policy_follows_its_program_and_a_start_resets_the_carry(double):
    policy = player.load(double)
    carry = policy.initial_carry()
    action, carry = policy(np.array([[1.0, 2.0]]), carry, start=True)
    np.testing.assert_array_equal(action, [[2, 4]])
    action, carry = policy(np.array([[1.0, 2.0]]), carry)
    np.testing.assert_array_equal(action, [[4, 8]])
    action, carry = policy(np.array([[1.0, 2.0]]), carry, start=np.array([True]))
    np.testing.assert_array_equal(action, [[2, 4]])
    assert action.dtype == carry[0].dtype == np.float32
    assert policy.metadata == DOUBLE.metadata


def test_returned_arrays_may_be_changed(double):
    policy = player.load(double)
    one, carry = policy(np.ones((1, 2)), policy.initial_carry(), start=True)
    one += 100
    np.testing.assert_array_equal(carry[0], [[2, 2]])
    np.testing.assert_array_equal(policy(np.ones((1, 2)), carry)[0], [[4, 4]])


@pytest.mark.parametrize("alone", [True, False], ids=["copied alone", "in the package"])
def test_the_player_imports_only_numpy(double, tmp_path, alone):
    folder = tmp_path / "robot" if alone else ROOT
    if alone:
        folder.mkdir()
        shutil.copy(player.__file__, folder / "player.py")
    script = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        f"from {'player' if alone else 'purejaxppo.export.player'} import load\n"
        f"policy = load({str(double)!r})\n"
        "print(policy([[1.0, 2.0]], policy.initial_carry(), True)[0])\n"
        "for name in ('jax', 'flax', 'onnx', 'scipy', 'orbax'):\n"
        "    assert name not in sys.modules, name\n"
    )
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[[2. 4.]]", done.stderr


def test_every_operation_has_nodes_in_onnx():
    plain = {name for name, operation in player.OPERATIONS.items() if operation.node}
    assert plain | set(onnx_file.FORMS) == set(player.OPERATIONS)
    assert not plain & set(onnx_file.FORMS)
    assert set(rewrite.PARAMETER_RULES) <= set(player.OPERATIONS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p(np.ones(2)), r"obs has shape \(2,\), but the policy requires \(1, 2\)"),
        (lambda p: p(np.ones((2, 2)), p.initial_carry()), r"the batch size of the export"),
        (
            lambda p: p(np.ones((1, 2), complex)),
            "obs has dtype complex128, but the policy requires float32",
        ),
        (lambda p: p([["a", "b"]]), "obs has dtype <U1, but the policy requires float32"),
        (lambda p: p([[0, np.nan]], p.initial_carry()), r"obs\[0, 1\] = nan: observations must be"),
        (lambda p: p(np.ones((1, 2))), r"0 arrays, but the policy requires 1. .*initial_carry\(\)"),
        (lambda p: p(np.ones((1, 2)), [np.ones(2)]), r"carry.0 has shape \(2,\)"),
        (lambda p: p(np.ones((1, 2)), p.initial_carry(), [True, False]), r"start has shape \(2,\)"),
    ],
)
def test_a_wrong_call_gets_a_one_sentence_error(call, message, double):
    with pytest.raises(ValueError, match=message):
        call(player.load(double))


def test_the_error_of_a_missing_observation_part_names_it():
    ports = tuple(Port(f"obs.{name}", (1,), "float32") for name in "ab")
    program = DOUBLE._replace(
        inputs=ports,
        outputs=(Port("action.x", (1,), "float32"), Port("action.y", (1,), "float32")),
        results=("obs.b", "obs.a"),
        equations=(),
        initial_carry=(),
        obs={"a": 0, "b": 1},
        action={"x": 0, "y": 1},
    )
    policy = player.Policy(program)
    action, carry = policy({"a": [1.0], "b": [2.0]})
    assert (action["x"], action["y"], carry) == ([2.0], [1.0], ())
    with pytest.raises(ValueError, match=r"obs: the part 'b' is missing. Required: a, b"):
        policy({"a": [1.0]})
    with pytest.raises(ValueError, match="obs: the part 'a' is missing"):
        policy(np.ones(1))


def test_the_error_of_a_missing_file_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"nothing.npz: no such file"):
        player.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_file_gets_a_one_sentence_error(keep, double):
    whole = double.read_bytes()
    double.write_bytes(whole[: keep if keep > 1 else int(keep * len(whole))])
    with pytest.raises(ValueError, match=r"double.npz: corrupt, or not written by"):
        player.load(double)


def test_a_flipped_bit_raises_at_most_a_one_sentence_error(double):
    whole = double.read_bytes()
    expected = player.load(double)(np.ones((1, 2)), DOUBLE.initial_carry)[0]
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        double.write_bytes(damaged)
        try:
            action = player.load(double)(np.ones((1, 2)), DOUBLE.initial_carry)[0]
        except ValueError as error:
            assert "\n" not in str(error)
        else:  # for example a date, which does not affect the contents
            np.testing.assert_array_equal(action, expected)


def test_another_format_and_unknown_operations_are_rejected(double):
    with pytest.raises(ValueError, match=r"the file has format 2, but this player reads format 1"):
        player.load(rewritten(double, lambda header, _: header.update(format=2)))

    def rename(header, _):
        header.update(format=1)
        header["equations"][0][0] = "launch"

    with pytest.raises(ValueError, match="unknown operation 'launch'"):
        player.load(rewritten(double, rename))


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: arrays.pop("two"),
        lambda header, arrays: arrays.pop("carry.0"),
        lambda header, arrays: header.pop("obs"),
        lambda header, arrays: header["equations"].append("add"),
        lambda header, arrays: header["results"].append("v77"),
    ],
)
def test_a_file_with_missing_parts_is_rejected(change, double):
    with pytest.raises(ValueError, match="corrupt"):
        player.load(rewritten(double, change))


def test_pickles_are_never_loaded(tmp_path):
    path = tmp_path / "pickled.npz"
    np.savez(path, header=np.array([{"format": 1}], object))
    with pytest.raises(ValueError, match="corrupt, or not written by"):
        player.load(path)


def test_convolution_by_hand():
    image = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    kernel = np.array([[[[1, 0], [0, 10]]]], np.float32)
    options = {"strides": [1, 1], "padding": [[0, 0], [0, 0]], "dilation": [1, 1], "groups": 1}
    convolve = player.OPERATIONS["conv_general_dilated"].compute
    np.testing.assert_array_equal(
        convolve(image, kernel, **options)[0, 0], [[0 + 40, 1 + 50], [3 + 70, 4 + 80]]
    )
    options |= {"strides": [2, 2], "padding": [[1, 0], [1, 0]]}
    np.testing.assert_array_equal(convolve(image, kernel, **options)[0, 0], [[0, 20], [60, 4 + 80]])


def test_integer_division_rounds_towards_zero():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    quotient = player.OPERATIONS["div"].compute(a, b)
    np.testing.assert_array_equal(quotient, [3, -3, -3, 3])
    assert quotient.dtype == np.int32
