"""The training loop: run a chunk of updates, then the hooks that are due."""

import logging
import time
from collections.abc import Sequence

import jax
import numpy as np

from purejaxppo.agents import diagnostics
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel import processes
from purejaxppo.runs.hooks import Save, evaluate_start
from purejaxppo.runs.training import Hook, Training, widen

log = logging.getLogger("purejaxppo")

CHUNK_SECONDS = 1.0
"""Target duration of one call of `train_chunk`. Ctrl-C and the progress bar wait this long."""
FIRST_CHUNK_UPDATES = 1


def loop(run: Training, hooks: Sequence[Hook], interrupt: Interrupt) -> None:
    """Train until the end of the run, a signal, or a stop by a callback, and save.

    Args:
        run: the run, with the state to train.
        hooks: called after each chunk, in this order.
        interrupt: the first signal ends the loop after the current chunk.
    """
    p, every, programs = run.progress, run.intervals, run.programs
    every.begin(every.done(p))
    p.stopped = ""
    run.call("on_start")
    if run.warm and every.eval:
        evaluate_start(run)
    if p.before_failure is not None:
        if restore_rows(run):
            act(run, hooks)
        run.save(replace=True)
    chunk, first = FIRST_CHUNK_UPDATES, p.update
    while not (every.ended(p) or p.stopped or processes.interrupted(interrupt)):
        if p.update > first:
            programs.begin_evaluation()
        updates = min(chunk, every.until_next(p.update))
        seconds = train_chunk(run, updates)
        chunk = max(1, int(CHUNK_SECONDS * updates / seconds))
        act(run, hooks)
    Save().act(run)
    run.checkpoints.wait()
    if p.stopped and not run.was_stopped:  # by `on_save`, after the checkpoint
        run.save(replace=True)
    run.call("on_end")
    run.loggers.close()


def act(run: Training, hooks: Sequence[Hook]) -> None:
    """Call the hooks that are due after a chunk."""
    run.in_hooks = True
    for hook in hooks:
        if hook.due(run):
            hook.act(run)
    run.in_hooks = False


def restore_rows(run: Training) -> bool:
    """Restore the rows after a chunk whose hooks failed, from the metrics in the checkpoint.

    Returns:
        False if the columns of the metrics have changed. Their values are then lost.
    """
    p = run.progress
    assert p.before_failure is not None
    before, p.before_failure = p.before_failure, None
    extras = [name.removeprefix("extras.") for name in p.unlogged if name.startswith("extras.")]
    zeros = diagnostics.zero_metrics(extras, len(run.programs.spec.metrics))
    size = len(run.members)
    zeros = jax.tree.map(lambda x: widen(np.zeros((size, *x.shape), x.dtype)), zeros)
    if p.restored_metrics(zeros) is None:
        run.console.warn("the last evaluation failed, and is not repeated because metrics changed")
        return False
    run.hyperparams()
    run.add(zeros)
    run.before, run.speed = before, sum(p.member_steps) / max(p.train_seconds, 1e-9)
    return True


def train_chunk(run: Training, updates: int) -> float:
    """Run `updates` updates, add their counts and metrics to the run, and return the seconds."""
    started = time.perf_counter()
    hp, run.before = run.hyperparams(), run.intervals.done(run.progress)
    assert run.state is not None
    state, metrics = run.programs.train_chunk(run.state, hp, np.int32(updates))
    metrics = jax.device_get(metrics)
    run.state = state  # only now, because the state before the chunk is saved if an update fails
    (seconds,) = processes.maximum(time.perf_counter() - started)
    run.progress.add(updates, metrics.env_steps, seconds)
    log.debug("train: %d updates to update %d in %.3f s", updates, run.progress.update, seconds)
    run.speed = int(metrics.env_steps.sum()) / seconds
    run.add(metrics)
    return seconds
