"""Devices of a run: start JAX, and report missing devices in one sentence."""

import os
import threading

import jax

from purejaxppo.config.installation import install_extra
from purejaxppo.parallel import awake, lapack, places, processes
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parallel.settings import IN_RUNS, check_settings
from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
from purejaxppo.setup import Setup

BUSY_ERRORS = ("busy", "OUT_OF_MEMORY", "out of memory", "RESOURCE_EXHAUSTED", "DEVICE_UNAVAILABLE")
"""Words in JAX's errors about a GPU that another program uses."""
STARTING = threading.Lock()
"""Lock for the start of JAX: the first of two runs in threads sets the devices of the process."""


def check_platforms(*, calls_lapack: bool = False) -> None:
    """Check that JAX finds the devices of JAX_PLATFORMS and can use them.

    Starts JAX, with more threads for simulators that call LAPACK.

    Raises:
        ValueError: JAX does not find them or cannot use them.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    try:
        if calls_lapack:
            lapack.start_with_threads()
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it has found a platform
        why = f" ({processes.reason(error)})" if str(error) else ""
        if any(word in str(error) for word in BUSY_ERRORS):
            raise ValueError(
                f"JAX cannot use the device{why}: another program uses it. Find the program with "
                f"nvidia-smi, or select another GPU with CUDA_VISIBLE_DEVICES."
            ) from error
        raise ValueError(
            f"JAX_PLATFORMS={platforms}: JAX does not find this device{why}. Unset JAX_PLATFORMS. "
            f"For an NVIDIA GPU, run: {install_extra('cuda')}"
        ) from error


def check_cpu(setup: Setup, device: jax.Device) -> None:
    """Check that JAX has a CPU device in addition to `device`, if the run needs one.

    Raises:
        ValueError: JAX has no CPU device, and the run's program calls the host.
    """
    config = setup.config
    if device.platform == "cpu" or not setup.on_host:
        return
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        feature = "asynchronous" if config.asynchronous else config.env.name
        raise ValueError(
            f"{feature} needs JAX's CPU in addition to the {device.platform}, but JAX_PLATFORMS = "
            f"{platforms} excludes it. Set JAX_PLATFORMS={platforms},cpu, or unset it."
        ) from error


def start_jax(setup: Setup, place: places.Place = places.ALONE) -> list[jax.Device]:
    """Set up JAX before its first use, and return the devices of all processes to train on.

    Raises:
        ValueError: JAX has fewer devices than the config requires, cannot use them, or has
            settings that are not supported.
    """
    config = setup.config
    check_settings(IN_RUNS)
    use_compilation_cache()
    # A single process may use more devices than it has cores.
    num_devices = config.devices if place == places.ALONE else min(config.devices, cpu_cores())
    with STARTING:
        use_cpu_cores(num_devices or place.cores, calls_host=setup.on_host)
        check_platforms(calls_lapack=setup.calls_lapack)
        by_process = processes.devices()
    if config.devices > len(by_process[0]):
        raise ValueError(
            f"devices = {config.devices}: JAX finds only {len(by_process[0])}. Use devices = 0 for "
            f"all of them."
        )
    check_cpu(setup, by_process[0][0])
    if config.keep_cores_awake:
        awake.check()
    return [device for devices in by_process for device in devices[: config.devices or None]]
