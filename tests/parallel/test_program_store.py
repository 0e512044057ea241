"""Kept programs: found again, and never when anything that they are made from has changed."""

import os
import pickle
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import struct

from purejaxppo.parallel import program_store
from purejaxppo.parallel.placeholders import Placeholder, packed, unpacked
from purejaxppo.parallel.program_store import ProgramStore, prune

pytestmark = pytest.mark.toy


class State(struct.PyTreeNode):
    """A simulator's own class of trees."""

    x: jax.Array
    key: jax.Array
    size: int = struct.field(pytree_node=False, default=3)


def step(state, y):
    return state.replace(x=state.x * 2 + y), {"sum": state.x.sum(), "none": None}


def lowered():
    return jax.jit(step, donate_argnums=0).lower(state(), np.float32(1))


def state():
    return State(jax.numpy.arange(3.0), jax.random.key(0))


def never():
    raise AssertionError("made again")


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Programs are kept, in a folder of the test's own, and its modules count as settled."""
    monkeypatch.setenv(program_store.SWITCH, "1")
    monkeypatch.setattr(program_store, "SETTLED", -1e9)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)


def entries(folder):
    return sorted(folder.glob("*")) if folder.is_dir() else []


def test_a_kept_program_does_what_the_compiled_one_does(kept):
    made = ProgramStore("key", jax.devices()[:1]).program("step", lowered)
    found = ProgramStore("key", jax.devices()[:1]).program("step", never, foreign=True)
    want, got = made(state(), np.float32(1)), found(state(), np.float32(1))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(
            *(
                jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
                for x in (one, other)
            )
        )


QR = """
import sys
import jax
import numpy as np
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
from purejaxppo.parallel import program_store
program_store.SETTLED = -1e9
one = program_store.ProgramStore("key", jax.devices())
qr = one.find("qr")
assert (qr is not None) == (sys.argv[2] == "kept")
qr = qr or one.compile("qr", jax.jit(jax.numpy.linalg.qr).lower(np.eye(3, dtype=np.float32)))
assert (program_store._FOUND.data is not None) == (sys.argv[2] == "cached")
np.testing.assert_allclose(abs(qr(np.eye(3, dtype=np.float32))[0]), np.eye(3))
"""


def test_a_program_of_xlas_cache_with_lapack_runs_in_a_process_that_has_not_lowered_it(tmp_path):
    for turn in ("compiled", "cached", "kept"):
        subprocess.run(
            [sys.executable, "-c", QR, str(tmp_path), turn],
            env={**os.environ, program_store.SWITCH: "1"},
            check=True,
        )
        if turn == "compiled":
            shutil.rmtree(tmp_path / "programs")


def test_a_simulators_class_is_a_placeholder_unless_asked_for(kept):
    ProgramStore("key", jax.devices()[:1]).program("step", lowered)
    found = ProgramStore("key", jax.devices()[:1]).program("step", never)
    given = jax.tree.unflatten(found.in_tree, jax.tree.leaves((state(), np.float32(1))))[0]
    after, _ = found(*given)
    assert isinstance(after, Placeholder)
    np.testing.assert_array_equal(after.x, np.arange(3.0) * 2 + 1)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(after)]
    assert names == [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state())]
    with pytest.raises(AttributeError):
        after.y  # noqa: B018


def test_structures_survive_a_pickle():
    tree = jax.tree.structure((state(), None, [1, {"a": 2}]))
    plain = pickle.loads(pickle.dumps(packed(tree)))
    assert unpacked(plain, foreign=True) == tree
    assert unpacked(plain, foreign=False).num_leaves == tree.num_leaves


@pytest.mark.parametrize("other", [("other", "step"), ("key", "other")])
def test_another_key_or_name_finds_nothing(kept, other):
    ProgramStore("key", []).fact("step", lambda: 1)
    assert ProgramStore("key", []).fact("step", never) == 1
    assert ProgramStore(other[0], []).fact(other[1], lambda: 2) == 2


def test_without_a_key_or_the_switch_nothing_is_kept(kept, monkeypatch):
    ProgramStore("", []).fact("step", lambda: 1)
    monkeypatch.setenv(program_store.SWITCH, "0")
    ProgramStore("key", []).fact("step", lambda: 1)
    monkeypatch.delenv(program_store.SWITCH)
    ProgramStore("key", []).fact("step", lambda: 1)
    assert entries(kept) == []


def test_the_compilation_caches_own_switch_holds_here_too(kept, monkeypatch):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert program_store.folder() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A module that was imported from a file, and a data file that its package has read."""
    package = tmp_path / "made_for_shelf"
    package.mkdir()
    (package / "__init__.py").write_text("VALUE = 1\n")
    (package / "data.txt").write_text("1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import made_for_shelf

    yield package
    del sys.modules[made_for_shelf.__name__]


@pytest.mark.parametrize("name", ["__init__.py", "data.txt"])
def test_a_changed_source_or_data_file_is_never_overlooked(kept, imported, name):
    one = ProgramStore("key", [])
    (imported / "data.txt").read_text()
    one.fact("value", lambda: 1)
    assert ProgramStore("key", []).fact("value", never) == 1
    with (imported / name).open("a") as file:
        file.write("# longer\n")
    assert ProgramStore("key", []).fact("value", lambda: 2) == 2
    assert ProgramStore("key", []).fact("value", never) == 2  # replaced


def test_what_has_just_been_changed_is_not_kept(kept, imported, monkeypatch):
    monkeypatch.setattr(program_store, "SETTLED", 10.0)
    os.utime(imported / "__init__.py", (time.time(), time.time()))
    ProgramStore("key", []).fact("value", lambda: 1)
    assert entries(kept) == []
    os.utime(imported / "__init__.py", (1e9, 1e9))
    monkeypatch.setattr(
        program_store, "STARTED", time.time() + 60
    )  # this test's own modules are older
    ProgramStore("key", []).fact("value", lambda: 1)
    assert len(entries(kept)) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:30] + b"x" + data[31:]]
)
def test_a_damaged_entry_is_made_again(kept, damage):
    ProgramStore("key", jax.devices()[:1]).program("step", lowered)
    (entry,) = entries(kept)
    entry.write_bytes(damage(entry.read_bytes()))
    assert ProgramStore("key", jax.devices()[:1]).find("step") is None
    ProgramStore("key", jax.devices()[:1]).program("step", lowered)
    assert ProgramStore("key", jax.devices()[:1]).find("step") is not None


def test_a_whole_entry_that_cannot_be_loaded_is_made_again(kept):
    one = ProgramStore("key", jax.devices()[:1])
    one._write("step", lambda: (b"no program", None, None))
    assert one.find("step") is None
    one.program("step", lowered)
    assert one.find("step") is not None


def test_a_program_that_calls_back_is_not_kept(kept):
    def calls(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

    made = ProgramStore("key", jax.devices()[:1]).program(
        "calls", lambda: jax.jit(calls).lower(np.float32(1))
    )
    assert made(np.float32(0)) == 0
    assert entries(kept) == []


def test_a_folder_that_cannot_be_written_to_is_no_error(kept):
    kept.parent.joinpath("programs").write_text("a file")
    assert ProgramStore("key", []).fact("value", lambda: 1) == 1


def test_the_oldest_entries_are_deleted_first(tmp_path):
    for age, name in enumerate("abc"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path, 20)
    assert [path.name for path in entries(tmp_path)] == ["a", "b"]


def test_an_entry_that_is_used_is_not_the_oldest_any_more(kept):
    ProgramStore("key", []).fact("value", lambda: 1)
    (entry,) = entries(kept)
    os.utime(entry, (1, 1))
    ProgramStore("key", []).fact("value", never)
    assert entry.stat().st_mtime > 1e9


WRITER = """
import sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
from purejaxppo.parallel import program_store
program_store.SETTLED = -1e9
for i in range(200):
    value = program_store.ProgramStore("key", []).fact("value", lambda: bytes(100_000))
    assert value == bytes(100_000)
    for path in program_store.folder().glob("value-*") if i % 3 == 0 else ():
        path.unlink(missing_ok=True)
"""


def test_two_processes_may_write_and_delete_one_entry_at_once(tmp_path):
    env = {**os.environ, program_store.SWITCH: "1"}
    both = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], env=env) for _ in range(2)
    ]
    assert [one.wait() for one in both] == [0, 0]
    assert all(path.name.startswith("value-") for path in entries(tmp_path / "programs"))
