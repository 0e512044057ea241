"""Devices of a run: what JAX finds, and what is wrong with it in one sentence."""

import contextlib
import os
from collections.abc import Iterator

import jax

from purejaxppo.config.schema import Config
from purejaxppo.parallel import lapack, processes
from purejaxppo.runs.console import Stopped
from purejaxppo.setup import Setup

TAKEN = ("busy", "OUT_OF_MEMORY", "out of memory", "RESOURCE_EXHAUSTED", "DEVICE_UNAVAILABLE")
"""Words of errors about a card that another program uses."""


def found(*, calls_lapack: bool = False) -> list[list[jax.Device]]:
    """The devices of each process; starts JAX as `check_platforms` does.

    Raises:
        ValueError: see `check_platforms` and `processes.devices`.
    """
    check_platforms(calls_lapack=calls_lapack)
    return processes.devices()


def check_platforms(*, calls_lapack: bool = False) -> None:
    """Check that JAX finds the devices of JAX_PLATFORMS and can use them.

    Starts JAX, with more threads for simulators that call LAPACK.

    Raises:
        ValueError: JAX does not find them or cannot use them.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    try:
        if calls_lapack:
            lapack.start_with_threads()
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it has found a back end
        said = processes.reason(error)
        why = f" ({said})" if str(error) else ""
        if any(word in str(error) for word in TAKEN):
            raise ValueError(
                f"JAX cannot use the device{why}: another program has taken it; `nvidia-smi` says "
                f"which, and CUDA_VISIBLE_DEVICES chooses another card"
            ) from error
        raise ValueError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device{why}; pip install "
            f"'purejaxppo[cuda12]' or 'purejaxppo[cuda13]', by the driver, or unset JAX_PLATFORMS"
        ) from error


def check_cpu(setup: Setup, device: jax.Device) -> None:
    """Checks that JAX has its CPU beside a device, where a run needs it.

    Raises:
        ValueError: it has not, and the run calls the host from its program.
    """
    config = setup.config
    if device.platform == "cpu" or not setup.on_host:
        return
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        what = "asynchronous" if config.asynchronous else config.env.name
        raise ValueError(
            f"{what} needs JAX's CPU beside the {device.platform}, and JAX_PLATFORMS={asked} "
            f"leaves it out: set JAX_PLATFORMS={asked},cpu, or unset it"
        ) from error


@contextlib.contextmanager
def enough_memory(config: Config) -> Iterator[None]:
    """Replaces JAX's error of a device without memory by a sentence.

    Raises:
        Stopped: the device has too little memory.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise Stopped(
            f"the device has too little memory for env.num_envs = {config.env.num_envs} x "
            f"ppo.rollout_length = {config.ppo.rollout_length} rows with ppo.num_minibatches = "
            f"{config.ppo.num_minibatches} ({processes.reason(error)}): take fewer environments "
            f"or more minibatches, or see what else is on the device"
        ) from error
