"""`make golden` reports which array differs, at which update, and by how much."""

import json

import golden
import numpy as np
import pytest

pytestmark = pytest.mark.toy

LOSS, KERNEL = "metrics.csv losses/value_loss", "params.actor.kernel"


def values():
    """A curve of four updates, the second without a number, and two weights."""
    return {
        LOSS: np.array([4.0, np.nan, 2.0, 1.0]),
        KERNEL: np.array([[0.5], [0.25]], np.float32),
    }


def test_equal_values_do_not_differ():
    assert golden.differences(values(), values()) == []
    assert golden.changed_hashes(golden.hashes(values()), golden.hashes(values())) == []


def test_difference_of_a_curve_names_its_first_update():
    new = values()
    new[LOSS][2:] = 2.5, 0.75
    assert golden.differences(values(), new) == [
        f"{LOSS}: 2 of 4 updates differ, by up to 0.5, the first is update 3: 2 in BASE, 2.5 here"
    ]


def test_number_in_place_of_an_empty_cell_differs():
    new = values()
    new[LOSS][1] = 3.0
    assert golden.differences(values(), new) == [
        f"{LOSS}: 1 of 4 updates differ, by up to nan, the first is update 2: nan in BASE, 3 here"
    ]


def test_last_bit_of_a_parameter_differs():
    new = values()
    new[KERNEL][0] = np.nextafter(np.float32(0.5), np.float32(1))
    assert golden.differences(values(), new) == [
        f"{KERNEL}: 1 of 2 numbers differ, by up to 5.96e-08"
    ]
    changed = golden.changed_hashes(golden.hashes(values()), golden.hashes(new))
    assert [line.partition(". ")[0] for line in changed] == [f"not the stored bits: {KERNEL}"]


def test_missing_and_new_arrays_and_other_shapes_differ():
    new = values() | {"metrics.csv eval/new": np.zeros(4), KERNEL: np.zeros(2, np.float32)}
    del new[LOSS]
    assert golden.differences(values(), new) == [
        f"{LOSS}: only in BASE",
        "metrics.csv eval/new: not in BASE",
        f"{KERNEL}: float32[2, 1] in BASE, float32[2] here",
    ]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """A function (flags, values in place of training) -> (exit code, output)."""
    monkeypatch.setattr(golden, "STORED", tmp_path / "golden.json")

    def run(*args, here, base=None):
        monkeypatch.setattr(golden, "run", lambda path, _: here if path == golden.ROOT else base)
        code = golden.main(["--configs", "cartpole.yaml", *map(str, args)])
        return code, capsys.readouterr().out

    return run


def test_hashes_are_stored_and_compared(run):
    code, out = run(here=values())
    assert code == 1
    assert out.startswith("cartpole.yaml: no hashes of jax ")
    assert run("--store", here=values()) == (0, "cartpole.yaml: stored\n")
    assert run(here=values()) == (0, "cartpole.yaml: identical\n")
    code, out = run(here={**values(), LOSS: np.zeros(4)})
    assert code == 1
    assert out.startswith(f"cartpole.yaml: not the stored bits: {LOSS}. ")


def test_two_checkouts_are_compared(run, tmp_path):
    (tmp_path / "purejaxppo").mkdir()
    assert run("--base", tmp_path, here=values(), base=values()) == (
        0,
        "cartpole.yaml: identical\n",
    )
    other = {**values(), KERNEL: np.array([[0.5], [0.75]], np.float32)}
    assert run("--base", tmp_path, here=values(), base=other) == (
        1,
        f"cartpole.yaml: {KERNEL}: 1 of 2 numbers differ, by up to 0.5\n",
    )


def test_a_base_that_is_not_a_checkout_is_an_error(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run("--base", tmp_path, here=values())
    assert end.value.code == 2
    assert f"--base {tmp_path}: not a checkout" in capsys.readouterr().err


def test_every_stored_processor_has_all_configs():
    for key, configs in json.loads(golden.STORED.read_text(encoding="utf-8")).items():
        assert configs.keys() == golden.CONFIGS.keys(), key
