"""Failures of a run: save, close, and report the reason.

Signals set a flag, which the loop reads; see `interrupts`.
"""

import contextlib
import logging
import traceback
from collections.abc import Iterator

import jax

from purejaxppo.config.hints import short_path
from purejaxppo.config.schema import Config
from purejaxppo.envs.host.bridge import simulator_errors
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.interrupts import NOTHING_LOST
from purejaxppo.parallel import processes
from purejaxppo.runs.callbacks import CallbackError
from purejaxppo.runs.console import Stopped, fail, message_of
from purejaxppo.runs.health import NotFiniteError
from purejaxppo.runs.training import Training

log = logging.getLogger("purejaxppo")

INTERRUPTED = f"interrupted; {NOTHING_LOST}"


class OutOfMemoryError(Stopped):
    """The run needs more memory than its device has."""


@contextlib.contextmanager
def saving_on_failure(run: Training) -> Iterator[None]:
    """Save and close a run that fails in this context, and raise an error with one sentence.

    Nothing is saved before training starts. With several processes, the failed process prints the
    sentence and exits, because the others would wait for it.

    Raises:
        SimulatorError: a host simulator failed.
        OutOfMemoryError: a device has too little memory.
        Stopped: another failure during training.
        Exception: another failure before training, as it was raised.
    """
    try:
        with simulator_errors(run.config.env.name, run.programs):
            yield
    except BaseException as error:
        failure = reported_error(run, error)
        if processes.is_distributed() and not isinstance(error, processes.DistributedError):
            end_process(run, failure)
        try:
            run.close()
        except Exception:
            log.debug("closing failed as well", exc_info=True)
        if failure is error:
            raise
        raise failure from error


def reported_error(run: Training, error: BaseException) -> BaseException:
    """Return the error to raise for a failure. If the run was training, save it first."""
    if is_out_of_memory(error):
        sentence = too_little_memory(run.config, error)
        # An evaluation failed. A failed chunk may have freed its state, and nothing can be saved.
        return OutOfMemoryError(sentence if run.state is None else f"{sentence} {save_first(run)}")
    log.debug("the run failed", exc_info=error)
    if run.state is None or not isinstance(error, Exception):
        return error
    if isinstance(error, SimulatorError):
        return SimulatorError(f"{error}\n{save_first(run)}")
    if isinstance(error, Stopped | NotFiniteError) or processes.is_distributed():
        return error
    message = " ".join(message_of(error).split())
    if not isinstance(error, OSError | CallbackError):
        message = f"{type(error).__name__}: {message}"
    return Stopped(f"{message.rstrip('.')}. {save_first(run)}")


def save_first(run: Training) -> str:
    """Save after a failure if possible, and return a sentence about the last checkpoint."""
    before_start = run.warm and run.intervals.eval and run.best is None  # start with it again
    try:
        if not (run.lost or before_start or processes.is_distributed()):
            if run.in_hooks and run.metrics is not None:  # rows are not written yet
                run.progress.before_failure = run.before
            run.save()
            run.checkpoints.wait()
    except Exception:
        log.debug("saving failed as well", exc_info=True)
    steps, saved = run.progress.env_steps, run.checkpoints.finished()
    folder = short_path(run.run_dir)
    if saved == steps and run.finished:
        return f"{folder} is complete and saved. The same command does not repeat the failed step."
    if saved is None:
        outcome, action = f"No checkpoint could be saved in {folder}", "start again"
    elif saved == steps:
        outcome, action = f"Saved at {steps:,} steps in {folder}", "resume"
    else:
        outcome, action = f"The last checkpoint in {folder} is at {saved:,} steps", "resume"
    return f"{outcome}. Fix the cause, then run the same command to {action}."


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if JAX reports that a device has too little memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def too_little_memory(config: Config, error: BaseException) -> str:
    """Return the message about a device with too little memory."""
    backend = jax.default_backend()
    device = "host" if backend == "cpu" else backend.upper()
    return (
        f"the {device} has too little memory for env.num_envs = {config.env.num_envs} x "
        f"ppo.rollout_length = {config.ppo.rollout_length} rows with ppo.num_minibatches = "
        f"{config.ppo.num_minibatches} ({processes.reason(error)}). Use fewer environments or "
        f"more minibatches, or stop other programs on the device."
    )


def end_process(run: Training, failure: BaseException) -> None:
    """Print the reason for a failure, and end this process of several."""
    if isinstance(failure, KeyboardInterrupt):
        code = fail(INTERRUPTED, code=130)
    elif not isinstance(failure, Exception):
        return
    elif isinstance(failure, SimulatorError | Stopped):
        code = fail(f"process {jax.process_index()}: {failure}")
    elif processes.is_communication_failure(failure):
        code = fail(lost_process(run, failure))
    elif isinstance(failure, ValueError | OSError):
        code = fail(f"process {jax.process_index()}: {failure}")
    else:
        traceback.print_exception(failure)
        code = 1
    processes.abort(code)


def lost_process(run: Training, error: Exception) -> str:
    """Return the message for the loss of another process."""
    saved = run.checkpoints.finished()
    state = (
        f"The last checkpoint is at {saved:,} steps. Run the same command to resume."
        if saved
        else "Nothing was saved. Run the same command to start again."
    )
    return (
        f"process {jax.process_index()} of {jax.process_count()} cannot reach another process "
        f"after {run.progress.env_steps:,} steps of {short_path(run.run_dir)} "
        f"({processes.reason(error)}). {state}"
    )
