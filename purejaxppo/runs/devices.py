"""Devices of a run: what JAX finds, and what is wrong with it in one sentence."""

import os
import threading

import jax

from purejaxppo.parallel import awake, lapack, places, processes
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parallel.settings import IN_RUNS, check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.setup import Setup

TAKEN = ("busy", "OUT_OF_MEMORY", "out of memory", "RESOURCE_EXHAUSTED", "DEVICE_UNAVAILABLE")
"""Words of errors about a card that another program uses."""
STARTING = threading.Lock()
"""Lock for JAX's start: the first of two runs in threads chooses the devices of the process."""


def devices_by_process(*, calls_lapack: bool = False) -> list[list[jax.Device]]:
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
                f"JAX cannot use the device{why}: another program uses it. Find the program with "
                f"nvidia-smi, or select another GPU with CUDA_VISIBLE_DEVICES."
            ) from error
        raise ValueError(
            f"JAX_PLATFORMS={asked}: JAX does not find this device{why}. Unset JAX_PLATFORMS, or "
            f"run: pip install 'purejaxppo[cuda12]' (cuda13 for newer drivers)"
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
            f"{what} needs JAX's CPU in addition to the {device.platform}, but JAX_PLATFORMS = "
            f"{asked} excludes it. Set JAX_PLATFORMS={asked},cpu, or unset it."
        ) from error


def start_jax(setup: Setup, place: places.Place = places.ALONE) -> list[jax.Device]:
    """Set JAX up before its first use; return the devices to train on, of all processes.

    Raises:
        ValueError: fewer devices than asked for, or JAX cannot use them, or not with its settings.
    """
    config = setup.config
    check_settings(IN_RUNS)
    use_compilation_cache()
    # One process alone may use more devices than it has cores.
    most = config.devices if place == places.ALONE else min(config.devices, cpu_cores())
    with STARTING:
        use_cpu_cores(most or place.cores, calls_host=setup.on_host)
        by_process = devices_by_process(calls_lapack=setup.calls_lapack)
    if config.devices > len(by_process[0]):
        raise ValueError(f"devices = {config.devices}: JAX finds only {len(by_process[0])}")
    check_cpu(setup, by_process[0][0])
    if config.keep_cores_awake:
        awake.check()
    return [device for own in by_process for device in own[: config.devices or None]]
