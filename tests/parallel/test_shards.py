"""Shards: equal results on any devices, and the compilation cache."""

import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.parallel import platforms
from purejaxppo.parallel.shards import Shards, use_compilation_cache

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(
    ("num_shards", "devices", "num_devices", "per_device"),
    [(1, 2, 1, 1), (2, 2, 2, 1), (6, 2, 2, 3), (3, 2, 1, 3), (4, 0, 1, 4)],
)
def test_shards_use_the_largest_number_of_devices_that_divides_them(
    num_shards, devices, num_devices, per_device
):
    shards = Shards(num_shards, jax.devices("cpu")[:devices])
    assert (shards.num_devices, shards.per_device) == (num_devices, per_device)


@pytest.mark.parametrize("devices", [0, 1, 2])
@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_sums_cover_all_shards_on_any_number_of_devices(num_shards, devices):
    shards = Shards(num_shards, jax.devices("cpu")[:devices])

    def function(common, local):
        total = shards.psum({"sum": common * local["x"]})["sum"]
        return total, {"x": local["x"] + total}

    mapped = jax.jit(shards.map(function, (None, 0), (None, 0)))
    x = np.arange(1.0, num_shards + 1)[:, None] * np.array([1.0, 10.0])
    total, local = mapped(jnp.float32(2), {"x": jnp.asarray(x)})
    np.testing.assert_array_equal(total, 2 * x.sum(0))
    np.testing.assert_array_equal(local["x"], x + 2 * x.sum(0))


def loops(function, *args):
    """Return the lengths of the loops in the traced function."""
    equations = jax.make_jaxpr(function)(*args).eqns
    return [each.params["length"] for each in equations if each.primitive is jax.lax.scan_p]


def total(x, y):
    return {"total": jnp.sum(x * y), "y": jnp.sin(y)}


@pytest.mark.parametrize(("axes", "length"), [((0, None), 3), ((None, 0), 5), ((0, 0), 3)])
def test_agents_computed_in_turn_on_a_cpu_equal_vmapped_agents(axes, length):
    x = np.linspace(0.0, 1.0, 12).reshape(3, 4)
    y = np.linspace(1.0, 2.0, length * 4).reshape(length, 4)
    args = [values if axis == 0 else values[0] for values, axis in zip((x, y), axes, strict=True)]
    function = jax.vmap(Shards(1, num_members=length).in_turn(total), axes)
    assert loops(function, *args) == [length]
    jax.tree.map(np.testing.assert_array_equal, function(*args), jax.vmap(total, axes)(*args))


def test_agents_are_vmapped_on_accelerators_and_with_several_shards():
    x = np.ones((3, 4))
    assert loops(jax.vmap(Shards(2, num_members=3).in_turn(total)), x, x) == []
    assert loops(jax.vmap(Shards(1).in_turn(total)), x, x) == []
    with platforms.tracing_for("gpu"):
        assert loops(jax.vmap(Shards(1, num_members=3).in_turn(total)), x, x) == []


@pytest.fixture
def cache():
    """A function: use the compilation cache and return its folder. `named` is JAX's setting."""
    before = jax.config.jax_compilation_cache_dir

    def folder(named=None):
        jax.config.update("jax_compilation_cache_dir", named and str(named))
        use_compilation_cache()
        return jax.config.jax_compilation_cache_dir

    yield folder
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_a_user_without_a_home_folder_has_no_compilation_cache(home, cache, monkeypatch):
    def unknown(number):
        raise KeyError(f"uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "environ", {} if home is None else {"HOME": home})
    assert cache() is None


def test_the_compilation_cache_is_a_private_folder(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path)})
    before = os.umask(0)
    try:
        for named in (None, tmp_path / "named"):
            folder = named or tmp_path / "purejaxppo" / "xla"
            assert cache(named) == str(folder)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_cache_folder_that_others_can_write_to_is_not_used(
    cache, mode, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path)})
    folder = Path(cache())
    folder.chmod(mode)
    assert cache() is None
    assert cache(folder) is None
    assert f"{folder}: compiled programs are not cached" in caplog.text
    folder.chmod(0o755)
    assert cache() == str(folder)


def test_a_cache_folder_of_another_user_is_not_used(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_uid=5, st_mode=0o40700))
    assert cache(tmp_path) is None


def test_a_cache_in_a_bucket_is_left_to_jax(cache):
    assert cache("gs://bucket/programs") == "gs://bucket/programs"
