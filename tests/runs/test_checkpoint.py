"""Saves: whole or not there, of every kind of array, and refused where they do not fit."""

import contextlib
import functools
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.disk import file_size_limit, small_disk
from support.runs import error_of, final_state, start, train, wait_for

import purejaxppo.commands.evaluate as evaluate_command
from purejaxppo import restore
from purejaxppo.config.files import to_yaml
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.rows import read_csv
from purejaxppo.runs.sinks import logs

WATCHED = []
"""Who wants to know before a file is made, renamed or deleted."""
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove"}


@functools.cache
def watch_files():
    """Python has no way to take such a hook off again."""

    def hook(event, args):
        if WATCHED and event in FILE_EVENTS and isinstance(args[0], str | os.PathLike):
            WATCHED[-1](os.fspath(args[0]))

    sys.addaudithook(hook)


class Moments:
    """Copies of a folder as a `kill -9` would leave it, before each thing that is done in it."""

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
            with contextlib.suppress(shutil.Error):  # XLA's threads write on
                shutil.copytree(self.folder, to)


def test_a_save_on_a_full_disk_leaves_the_one_before_and_no_folder(make_config, tmp_path):
    config = make_config()
    state = Programs(config, jax.devices()[:1]).init()
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


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("checkpoints", "nr_inodes=60"),
        pytest.param("tensorboard", "size=8k", marks=pytest.mark.full),
        pytest.param(".", "size=400k", marks=pytest.mark.full),
    ],
)
def test_a_full_disk_ends_a_run_with_one_sentence(folder, options, config_file):
    """tensorboardX would block, and threads of Orbax would keep the process for five minutes."""
    flags = "--total_timesteps 200000 --checkpoint.interval 2000 --eval.num_episodes 0"
    with small_disk(Path("run", folder), options):
        process = start(config_file, "--run_dir", "run", "--logging.tensorboard", *flags.split())
        out, err = process.communicate(timeout=100)
        assert process.returncode == 2, err
        assert re.fullmatch(
            r"error: run/\S+ cannot be written \(no space left on device\)\. (Saved at \S+ steps in"
            r" run|The last save, at \S+ steps in run, is intact)\. Fix the cause, then run the"
            r" same command to resume\.\n",
            err,
        )
        assert f"run/{folder.strip('.')}" in err
        assert "Traceback" not in out
        assert all(path.name.isdigit() for path in Path("run/checkpoints").iterdir())


def test_a_save_that_is_cut_at_any_moment_is_not_seen(make_config, tmp_path):
    config = make_config()
    state = Programs(config, jax.devices()[:1]).init()
    run, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    checkpoints = Checkpoints(run, keep=1)
    (run / "config.yaml").write_text(to_yaml(config))
    checkpoints.save(state.replace(update=state.update + 10), Progress(1, member_steps=[10]))
    checkpoints.close()
    watch_files()
    WATCHED.append(Moments(run, copies))
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
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.full)])
def test_kill_9_at_any_moment_never_loses_the_last_good_save(kills, config_file):
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
        # rows reach the disk before saves do: at most one save interval lies between them
        assert len([s for s in steps if s > saved]) <= 2


def test_a_damaged_or_foreign_save_gets_one_sentence(finished_run, config_file, capsys):
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("- 16", "- 32"))
    assert evaluate_command.main(["--run", "run"]) == 2
    assert "does not fit the run's config.yaml" in error_of(capsys)
    Path("run/config.yaml").write_text(text)
    last = max(Path("run/checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    shutil.rmtree(last / "train")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 2048) == 2
    assert "does not fit the run's config.yaml" in capsys.readouterr().err
    assert Path("run/config.yaml").read_text() == text


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


def test_a_state_may_be_deleted_right_after_it_is_handed_over(make_config, tmp_path):
    state = Programs(make_config(num_shards=2), jax.devices()[:2]).init()
    env = {"simulator": state.rollout.env, "forces": jnp.ones((1, 4, 2), jnp.bfloat16)}
    state = state.replace(rollout=state.rollout.replace(env=env))
    leaves, where = jax.tree.leaves(state), jax.tree.map(lambda x: x.sharding, state)
    expected = [np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, Progress(1, member_steps=[10]), state.agent)
    for x in leaves:
        x.delete()
    checkpoints.close()
    again, best, _ = Checkpoints(tmp_path).restore(state)
    assert jax.tree.map(lambda x: x.sharding, again) == where
    assert jax.tree.structure(best) == jax.tree.structure(state.agent)
    for x, was in zip(jax.tree.leaves(again), expected, strict=True):
        found = jax.random.key_data(x) if is_key(x) else x
        assert isinstance(x, jax.Array)
        assert found.dtype == was.dtype
        np.testing.assert_array_equal(found, was)


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.full
def test_a_run_killed_before_its_first_save_starts_again(config_file):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/best/5000").mkdir(parents=True)
    Path("run/.lock").touch()
    flags = ("--run_dir", "run", "--total_timesteps", 128, "--eval.num_episodes", 1)
    assert train(config_file, *flags) == 0
    assert restore("run", "last").env_steps > 0
    assert 0 < restore("run", "best").env_steps < 5000  # and not what that run left behind
