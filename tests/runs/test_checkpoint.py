"""Checkpoints: complete or absent, for every kind of array, and rejected if they do not fit."""

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code
from support.disk import file_size_limit, small_disk
from support.runs import error_of, final_state, setup_of, start, train, wait_for

import purejaxppo.cli.evaluate as evaluate_command
from purejaxppo import restore
from purejaxppo.config.files import to_yaml
from purejaxppo.envs import vectorize
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs.checkpoint import Checkpoints, restore_all
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.logs import logs
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.rows import read_csv
from purejaxppo.types import LearnedState

WATCHED = []
"""Functions that are called before a file is created, renamed or deleted."""
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove"}


@functools.cache
def watch_files():
    """Install the audit hook once. Python cannot remove such a hook."""

    def hook(event, args):
        if WATCHED and event in FILE_EVENTS and isinstance(args[0], str | os.PathLike):
            WATCHED[-1](os.fspath(args[0]))

    sys.addaudithook(hook)


class Snapshots:
    """Copies of a folder before each change in it, as a `kill -9` would leave it."""

    def __init__(self, folder, copies):
        self.folder, self.copies = folder, copies
        self.seen, self.lock, self.busy = set(), threading.Lock(), threading.local()

    def __call__(self, path):
        if getattr(self.busy, "copying", False) or not path.startswith(str(self.folder)):
            return
        with self.lock:
            self.busy.copying = True
            try:
                self.copy()
            finally:
                self.busy.copying = False

    def copy(self):
        found = [p for p in self.folder.rglob("*") if p.exists()]
        listing = tuple(sorted(str(p) for p in found))
        if listing not in self.seen:
            to = self.copies / f"{len(self.seen):03d}"
            self.seen.add(listing)
            with contextlib.suppress(shutil.Error):  # XLA's threads still write
                shutil.copytree(self.folder, to)


def test_a_failed_save_on_a_full_disk_keeps_the_previous_checkpoint_and_leaves_no_folder(
    make_config, tmp_path
):
    config = make_config()
    state = Programs(setup_of(config)).init()
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, Progress(1, member_steps=[10]))
    checkpoints.wait()
    full = file_size_limit(200)
    with logs(config, tmp_path), full, pytest.raises(OSError, match="written") as failed:
        checkpoints.save(state, Progress(2, member_steps=[20]))
        checkpoints.wait()
    folder = tmp_path / "checkpoints"
    assert str(failed.value) == f"{folder} cannot be written (file too large)"
    assert [path.name for path in folder.iterdir()] == ["10"]
    assert checkpoints.finished() == 10
    checkpoints.close()
    assert restore(tmp_path, "last").env_steps == 10


@pytest.mark.parametrize("fraction", [1.0, 1 / 64])
def test_checkpoint_of_0_2_with_fewer_than_sixteen_starts_is_restored(
    fraction, make_config, tmp_path, monkeypatch
):
    walk = own_code.Walk()
    for name, value in (("cheap_reset", False), ("fresh_fraction", fraction)):
        object.__setattr__(walk, name, value)
    config = make_config(env={"name": walk, "num_envs": 2})

    def state_with(num_starts):
        monkeypatch.setattr(vectorize, "MIN_STARTS", num_starts)
        parts = make_parts(config)
        return jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))

    old, new = state_with(1), state_with(16)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(old, Progress(1, member_steps=[10]))
    restored = checkpoints.restore(new)[0]
    checkpoints.close()
    assert jax.tree.map(jnp.shape, restored) == jax.tree.map(jnp.shape, new)
    expected, found = (np.asarray(state.rollout.env.fresh[1]) for state in (old, restored))
    assert found.shape[-2:] == (16, 1)
    np.testing.assert_array_equal(found, np.tile(expected, (8, 1)))
    np.testing.assert_array_equal(restored.rollout.env.task[0], old.rollout.env.task[0])
    assert fraction == 1 or (restored.rollout.env.turn == 0).all()


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("checkpoints", "nr_inodes=60"),
        pytest.param("tensorboard", "size=8k", marks=pytest.mark.full),
        pytest.param(".", "size=400k", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_ends_a_run_with_a_one_sentence_error(folder, options, config_file):
    """tensorboardX would block, and threads of Orbax would keep the process alive for 5 minutes."""
    flags = "--total_timesteps 200000 --checkpoint.interval 2000 --eval.num_episodes 0"
    with small_disk(Path("run", folder), options):
        process = start(config_file, "--run_dir", "run", "--logging.tensorboard", *flags.split())
        out, err = process.communicate(timeout=100)
        assert process.returncode == 2, err
        assert re.fullmatch(
            r"error: \S*/run/\S+ cannot be written \(no space left on device\)\. (Saved at \S+ "
            r"steps in run|The last checkpoint in run is at \S+ steps)\. Fix the cause, then run "
            r"the same command to resume\.\n",
            err,
        )
        assert f"run/{folder.strip('.')}" in err
        assert "Traceback" not in out
        assert all(path.name.isdigit() for path in Path("run/checkpoints").iterdir())


def test_a_save_interrupted_at_any_point_leaves_a_readable_checkpoint(make_config, tmp_path):
    config = make_config()
    state = Programs(setup_of(config)).init()
    run, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    checkpoints = Checkpoints(run, keep=1)
    (run / "config.yaml").write_text(to_yaml(config))
    checkpoints.save(state.replace(update=state.update + 10), Progress(1, member_steps=[10]))
    checkpoints.close()
    watch_files()
    WATCHED.append(Snapshots(run, copies))
    try:
        checkpoints = Checkpoints(run, keep=1)
        checkpoints.save(state.replace(update=state.update + 20), Progress(2, member_steps=[20]))
        checkpoints.close()
    finally:
        WATCHED.pop()
    found = []
    for copy in sorted(copies.iterdir()):
        steps = restore(copy, "last").env_steps
        checkpoints = Checkpoints(copy)
        again, _, progress = checkpoints.restore(state)
        checkpoints.close()
        assert progress.env_steps == again.update == steps
        found.append(steps)
    assert found == sorted(found)
    assert set(found) == {10, 20}
    assert found.count(10) > 5


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_kill_9_never_loses_the_last_complete_checkpoint(kills, config_file):
    flags = ["--run_dir", "killed", "--total_timesteps", "100_000_000"]
    flags += ["--checkpoint.interval", "128", "--logging.interval", "128"]
    flags += ["--eval.interval", "1280"]
    chance = random.Random(0)
    saved = 0
    for _ in range(kills):
        process = start(config_file, *flags)
        folder = Path("killed/checkpoints")
        fresh = saved

        def newer(folder=folder, fresh=fresh):
            return any(int(p.name) > fresh for p in folder.glob("[0-9]*") if p.name.isdigit())

        wait_for(newer, process)
        time.sleep(chance.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        agent = restore("killed", "last")
        assert agent.env_steps > saved
        saved = agent.env_steps
        restore("killed", "best")
        state, progress = final_state("killed")
        assert progress.env_steps == saved
        assert all(np.isfinite(x).all() for name, x in state.items() if "params" in name)
        steps = [row["global_step"] for row in read_csv(Path("killed/metrics.csv"))]
        assert steps == sorted(set(steps))
        # rows reach the disk before checkpoints: they differ by at most one checkpoint interval
        assert len([s for s in steps if s > saved]) <= 2


def test_a_checkpoint_that_does_not_fit_the_config_gets_a_one_sentence_error(finished_run, capsys):
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("- 16", "- 32"))
    assert evaluate_command.main(["--run", "run"]) == 2
    assert "the checkpoint does not match the run's config.yaml" in error_of(capsys)


def test_training_stops_and_changes_nothing_if_the_only_checkpoint_is_damaged(
    finished_run, config_file, capsys
):
    (last,) = Path("run/checkpoints").iterdir()
    shutil.rmtree(last / "train")
    before = contents("run")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 2048) == 2
    assert error_of(capsys) == (
        f"error: run/checkpoints: corrupt checkpoint {last.name} (train "
        f"cannot be read: no arrays found). All checkpoints "
        f"are corrupt. Restore a backup, delete this run with --clobber, or use another "
        f"--run_dir.\n"
    )
    assert contents("run") == before


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def add_number(state, number):
    """Return the state with `number` added to every array except keys."""
    return jax.tree.map(lambda x: x if is_key(x) else (x + number).astype(x.dtype), state)


def save_numbered(checkpoints, state, *numbers):
    for number in numbers:
        progress = Progress(number, 0.5, [number], [float(number)], [number])
        best = add_number(state.learned, number + 1)
        checkpoints.save(add_number(state, number), progress, best)
        checkpoints.wait()


@pytest.fixture(scope="module")
def two_checkpoints_once(make_config, tmp_path_factory):
    """A run folder with checkpoints 10 and 20 of numbered states, and the state itself."""
    config, run = make_config(), tmp_path_factory.mktemp("two") / "run"
    state = Programs(setup_of(config)).init()
    checkpoints = Checkpoints(run)
    save_numbered(checkpoints, state, 10, 20)
    checkpoints.close()
    (run / "config.yaml").write_text(to_yaml(config))
    return run, state


@pytest.fixture
def two_checkpoints(two_checkpoints_once, tmp_path):
    """A copy of the folder of `two_checkpoints_once`, and the state."""
    shutil.copytree(two_checkpoints_once[0], tmp_path / "run")
    return tmp_path / "run", two_checkpoints_once[1]


def assert_equal(tree, other):
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(
            *(jax.random.key_data(x) if is_key(x) else x for x in (a, b)), strict=True
        )


def resumed_at(run, state):
    """Return the step at which training resumes. Check every array and counter."""
    checkpoints = Checkpoints(run)
    again, best, progress = checkpoints.restore(state)
    checkpoints.close()
    number = progress.env_steps
    assert progress == Progress(number, 0.5, [number], [float(number)], [number])
    assert_equal(again, add_number(state, number))
    assert_equal(best, add_number(state.learned, number + 1))
    return number


def test_a_later_update_without_steps_replaces_the_checkpoint(two_checkpoints):
    """The last updates of a run may only reset environments."""
    run, state = two_checkpoints
    checkpoints = Checkpoints(run)
    checkpoints.restore(state)
    assert not checkpoints.save(state, Progress(20, member_steps=[20]))
    assert checkpoints.save(add_number(state, 50), Progress(21, member_steps=[20]))
    assert not checkpoints.save(state, Progress(21, member_steps=[20]))
    checkpoints.wait()
    again, _, progress = checkpoints.restore(state)
    checkpoints.close()
    assert (progress.update, progress.env_steps) == (21, 20)
    assert_equal(again, add_number(state, 50))


def test_the_steps_of_the_best_evaluation_select_the_best_agent(two_checkpoints):
    run, state = two_checkpoints
    checkpoints = Checkpoints(run)
    progress = Progress(30, 0.5, [30], [7.0], [1007])
    checkpoints.save(add_number(state, 30), progress, add_number(state.learned, 70))
    checkpoints.close()
    best = restore(run, "1,007")
    assert best.env_steps == 1007
    params = jax.tree.map(lambda x: x[0], state.agent.params)
    assert_equal(best.state.params, add_number(params, 70))
    assert_equal(restore(run, "20").state.params, add_number(params, 20))
    with pytest.raises(
        ValueError, match=r"unknown checkpoint '1008'\. Checkpoints: best, last, 20"
    ):
        restore(run, "1008")


def test_runs_in_threads_of_one_process_save_at_the_same_time(make_config, tmp_path):
    """Orbax's threads share counters, so saves that created folders in the background failed."""
    runs = [tmp_path / name for name in "abcd"]
    state = Programs(setup_of(make_config())).init()
    ready = threading.Barrier(len(runs))

    def save_all(i):
        checkpoints = Checkpoints(runs[i])
        for number in (10, 20, 30):
            with contextlib.suppress(threading.BrokenBarrierError):  # another run has failed
                ready.wait(timeout=60)
            try:
                save_numbered(checkpoints, state, number + i)
            except Exception:
                ready.abort()
                raise
        checkpoints.close()

    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(save_all, range(len(runs))))
    assert [resumed_at(run, state) for run in runs] == [30, 31, 32, 33]


def read_at(run, state, checkpoint, plus):
    """Return the step of the agent that `restore` reads. Check every array."""
    agent = restore(run, checkpoint)
    expected = jax.tree.map(lambda x: x[0], add_number(state.learned, agent.env_steps + plus))
    # Statistics are left out if only they are corrupt.
    has_statistics = isinstance(agent.state, LearnedState)
    assert_equal(agent.state, expected if has_statistics else expected.agent)
    return agent.env_steps


def damages(data):
    """Return corrupt contents of a file. None means deleted."""
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return None, b"", data[:middle], flipped


@pytest.mark.parametrize(
    ("items", "agents"),
    [
        (["agent", "progress"], {}),
        pytest.param(
            ["agent", "progress", "train", "best", ""],
            {"last": 0, "best": 1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["training", "all"],
)
def test_damage_to_any_file_restores_the_previous_checkpoint_or_correct_values(
    two_checkpoints, items, agents, capfd
):
    run, state = two_checkpoints
    newest = run / "checkpoints" / "20"
    paths = [p for item in items for p in (newest / item).glob("**/*" if item else "*")]
    corrupt = 0
    for path in [path for path in paths if path.is_file()]:
        data = path.read_bytes()
        for content in damages(data):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            for checkpoint, plus in agents.items():
                read_at(run, state, checkpoint, plus)
            step = resumed_at(run, state)
            corrupt += step == 10
            aside = run / "checkpoints" / "20.damaged"
            assert aside.is_dir() == (step == 10)
            if step == 10:
                aside.rename(newest)
            path.write_bytes(data)
    assert corrupt > 10
    assert resumed_at(run, state) == 20
    assert "Traceback" not in capfd.readouterr().err


def test_readable_arrays_of_another_checkpoint_count_as_damage(two_checkpoints):
    run, state = two_checkpoints
    older, newer = (run / "checkpoints" / str(step) / "agent" for step in (10, 20))
    shutil.rmtree(newer)
    shutil.copytree(older, newer)
    assert resumed_at(run, state) == 10


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage(run, step, item="agent"):
    """Change a byte of each file with arrays of an item."""
    for path in (run / "checkpoints" / str(step)).glob(f"{item}/**/d/*"):
        flip(path)


def test_training_renames_a_damaged_checkpoint_and_warns_of_the_steps_lost(two_checkpoints, caplog):
    run, state = two_checkpoints
    damage(run, 20)
    before = contents(run / "checkpoints" / "20")
    assert resumed_at(run, state) == 10
    folder = run / "checkpoints"
    assert caplog.messages == [
        f"{folder}: corrupt checkpoint 20 (agent cannot be read). Renamed to 20.damaged. "
        f"Training continues from the checkpoint at 10 steps, 10 steps earlier."
    ]
    aside = contents(folder / "20.damaged")
    assert [x for _, x in sorted(aside.items())] == [x for _, x in sorted(before.items())]
    checkpoints = Checkpoints(run)
    save_numbered(checkpoints, state, 20)
    damage(run, 20)
    checkpoints.close()
    assert resumed_at(run, state) == 10
    assert sorted(p.name for p in folder.iterdir()) == ["10", "20.damaged", "20.damaged2"]


def test_reading_uses_the_checkpoint_before_a_damaged_one_without_renaming(two_checkpoints, caplog):
    run, state = two_checkpoints
    damage(run, 20, "best")
    before = contents(run)
    assert read_at(run, state, "last", 0) == 20
    assert not caplog.messages
    assert read_at(run, state, "best", 1) == 10
    assert caplog.messages == [
        f"{run}/checkpoints: corrupt checkpoint 20 (best cannot be read). The checkpoint at 10 "
        f"steps is used instead, 10 steps earlier."
    ]
    assert contents(run) == before


def test_requesting_a_damaged_checkpoint_by_its_step_is_an_error(two_checkpoints, caplog):
    run, state = two_checkpoints
    damage(run, 20)
    with pytest.raises(ValueError, match=r"checkpoints/20 is corrupt \(agent cannot be read\)"):
        restore(run, 20)
    assert read_at(run, state, 10, 0) == 10
    assert [agent.env_steps for agent in restore_all(run)] == [10]
    assert "checkpoints/20 is corrupt" in caplog.text


def test_the_error_of_a_run_with_only_damaged_checkpoints_names_them_and_their_folder(
    two_checkpoints,
):
    run = two_checkpoints[0]
    damage(run, 20, "*")
    flip(run / "checkpoints" / "10" / "progress" / "metadata")
    named = r"checkpoints: corrupt checkpoints 20 \(.* cannot be read\), 10 \(progress.*\)\. All"
    for read in (Checkpoints, restore, functools.partial(restore, checkpoint="last")):
        with pytest.raises(ValueError, match=named):
            read(run)
    with pytest.raises(ValueError, match="is corrupt"):
        restore_all(run)
    for item in ("agent", "progress", "best"):
        shutil.rmtree(run / "checkpoints" / "10" / item)
    with pytest.raises(ValueError, match=r"10 \(progress cannot be read"):
        Checkpoints(run)  # and does not start from scratch
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["10", "20"]


def test_other_files_and_folders_among_checkpoints_are_ignored(two_checkpoints):
    run, state = two_checkpoints
    folder = run / "checkpoints"
    for name in ("99", "007", "31.orbax-checkpoint-tmp", "30.damaged", "x"):
        (folder / name).mkdir()
    for name in ("notes.txt", "98", "²"):
        (folder / name).touch()
    shutil.copytree(folder / "10", folder / "007", dirs_exist_ok=True)
    assert read_at(run, state, "last", 0) == 20
    assert resumed_at(run, state) == 20
    checkpoints = Checkpoints(run)
    save_numbered(checkpoints, state, 30, 99)
    checkpoints.close()
    assert resumed_at(run, state) == 99
    left = {"30", "99", "99.damaged", "007", "30.damaged", "x", "notes.txt", "98", "²"}
    assert {p.name for p in folder.iterdir()} == left


def test_a_checkpoint_without_checksums_is_restored(two_checkpoints):
    run, state = two_checkpoints
    path = run / "checkpoints" / "20" / "progress" / "metadata"
    counters = json.loads(path.read_text())
    assert counters.pop("checksums").keys() >= {"progress", "agent.params.actor.bias"}
    path.write_text(json.dumps(counters))
    assert resumed_at(run, state) == read_at(run, state, "last", 0) == 20
    damage(run, 20)
    assert resumed_at(run, state) == 10


def test_a_checkpoint_deleted_while_it_is_read_is_not_reported_as_damaged(two_checkpoints, caplog):
    run, state = two_checkpoints
    folder = run / "checkpoints"
    (folder / "20").rename(run / "aside")

    def train_on(path):
        if path.endswith("10/progress/metadata") and (run / "aside").exists():
            (run / "aside").rename(folder / "20")
            shutil.rmtree(folder / "10")

    watch_files()
    WATCHED.append(train_on)
    try:
        assert read_at(run, state, "last", 0) == 20
    finally:
        WATCHED.pop()
    assert not (folder / "10").exists()
    assert not caplog.messages


def test_the_first_checkpoint_of_a_run_is_verified_after_writing(two_checkpoints_once, tmp_path):
    state = two_checkpoints_once[1]

    def cut(path):
        if path.endswith("orbax-checkpoint-tmp"):
            for file in Path(path, "train").glob("**/d/*"):
                os.truncate(file, 10)

    checkpoints = Checkpoints(tmp_path)
    watch_files()
    WATCHED.append(cut)
    try:
        with pytest.raises(
            Stopped, match=r"written but cannot be read back \(train cannot be read"
        ):
            save_numbered(checkpoints, state, 10)
    finally:
        WATCHED.pop()
    checkpoints.close()


NAMES = ["lr=[1e-3]", "[a]", "a\\b", "a*b", "a?b", "{x}", "a b", "a\nb", "größe", "~b", "%s"]
NAMES += ["$HOME", "-dash", "up/../over", "\udcff"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_folder_may_have_any_name(name, two_checkpoints_once, tmp_path, monkeypatch):
    source, state = two_checkpoints_once
    monkeypatch.chdir(tmp_path)
    Path("up").mkdir()
    Path("axb").mkdir()  # the pattern a?b matches it
    run = Path(name)
    checkpoints = Checkpoints(run)
    save_numbered(checkpoints, state, 10, 20, 30)
    checkpoints.close()
    shutil.copy(source / "config.yaml", run)
    assert resumed_at(run, state) == read_at(run, state, "last", 0) == 30
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["20", "30"]


def test_a_state_with_empty_arrays_is_saved_and_restored(make_config, tmp_path, key):
    parts = make_parts(make_config())
    state = jax.jit(init_program(parts))(key, shard_ids(parts))
    env = {"simulator": state.rollout.env, "act": jnp.zeros((4, 0)), "forces": jnp.ones((4, 2))}
    state = state.replace(rollout=state.rollout.replace(env=env))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, Progress(1, member_steps=[10]))
    checkpoints.close()
    again, _, progress = Checkpoints(tmp_path).restore(state)
    assert progress.env_steps == 10
    assert jax.tree.structure(again) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert bool(jnp.all(a == b))


def test_arrays_may_be_deleted_right_after_save_returns(make_config, tmp_path):
    state = Programs(setup_of(make_config(num_shards=2), 2)).init()
    env = {"simulator": state.rollout.env, "forces": jnp.ones((1, 4, 2), jnp.bfloat16)}
    state = state.replace(rollout=state.rollout.replace(env=env))
    leaves, where = jax.tree.leaves(state), jax.tree.map(lambda x: x.sharding, state)
    expected = [np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, Progress(1, member_steps=[10]), state.learned)
    for x in leaves:
        x.delete()
    checkpoints.close()
    again, best, _ = Checkpoints(tmp_path).restore(state)
    assert jax.tree.map(lambda x: x.sharding, again) == where
    assert jax.tree.structure(best) == jax.tree.structure(state.learned)
    for x, was in zip(jax.tree.leaves(again), expected, strict=True):
        found = jax.random.key_data(x) if is_key(x) else x
        assert isinstance(x, jax.Array)
        assert found.dtype == was.dtype
        np.testing.assert_array_equal(found, was)


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.full
def test_a_run_killed_before_its_first_checkpoint_starts_from_scratch(config_file):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/.lock").touch()
    flags = ("--run_dir", "run", "--total_timesteps", 128, "--eval.num_episodes", 1)
    assert train(config_file, *flags) == 0
    assert restore("run", "last").env_steps > 0
