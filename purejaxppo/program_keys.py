"""Keys of kept programs in a `ProgramStore`: all that a config's program depends on."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jaxlib import xla_client

from purejaxppo.config import references
from purejaxppo.config.files import flatten
from purejaxppo.config.run_files import texts_of
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.program_store import ProgramStore, folder

WITHOUT_EFFECT = (
    "seed",
    "num_seeds",
    "run_dir",
    "callbacks",
    "keep_cores_awake",
    "eval.interval",
)
"""Fields that no program of one run depends on: seeds are arguments of programs."""
SECTIONS_WITHOUT_EFFECT = ("logging.", "checkpoint.", "pretrain.")
ENVIRONMENT = ("JAX_", "XLA_", "TF_", "CUDA_", "NVIDIA_", "LIBTPU_", "MJX_", "WARP_")
"""Beginnings of the names of environment variables that compilers and simulators read."""


def store(
    config: Config, devices: Sequence[jax.Device], *more: Any, changed: bool = False
) -> ProgramStore:
    """The kept programs of a config on some devices.

    Nothing is kept of users' own code, which may depend on anything; of simulators on the host,
    whose programs hold addresses of this process; with several processes; and where an option
    names a file.

    Args:
        config: of the run.
        devices: that the programs run on; none: the first.
        more: whatever else the programs depend on, as its `repr`.
        changed: what they are made of was changed by a function; nothing is kept.
    """
    used = list(devices) or jax.devices()[:1]
    if changed or folder() is None or not keepable(config):
        return ProgramStore("", used)
    fields = {
        name: value
        for name, value in flatten(config).items()
        if name not in WITHOUT_EFFECT and not name.startswith(SECTIONS_WITHOUT_EFFECT)
    }
    return ProgramStore(repr((sorted(fields.items()), more, machine(used), software())), used)


def keepable(config: Config) -> bool:
    """True if a config's programs depend on nothing but it, installed code, and the machine."""
    options = [*config.env.options.values(), *config.eval.options.values()]
    own = (
        getattr(text, "target", None) is not None or references.is_reference(text)
        for text in texts_of(config)
    )
    return not (
        registry.on_host(config.env)
        or processes.is_distributed()
        or config.env.name.startswith("jax/")
        or any(own)
        or any(isinstance(x, str) and Path(x).expanduser().exists() for x in options)
    )


def machine(devices: Sequence[jax.Device]) -> tuple:
    """The devices, and what a compiler may know of them."""
    client = devices[0].client
    try:
        topology: Any = xla_client.get_topology_for_devices(list(devices)).fingerprint()
    except (jax.errors.JaxRuntimeError, AttributeError):
        topology = _processor()
    each = [(device.id, device.platform, device.device_kind) for device in devices]
    threads = lapack.too_few_threads(devices)
    return each, jax.device_count(), client.platform_version, topology, _processor(), threads


def _processor() -> str:
    """The kind of processor with its features; '' where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = ("model name", "flags", "Features", "cpu family", "model\t")
    return hashlib.sha256(
        "\n".join(sorted({x for x in lines if x.startswith(names)})).encode()
    ).hexdigest()


def software() -> tuple:
    """This package's sources, Python, where it imports from, versions, settings of compilers."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    installed = [
        name
        for place in sys.path
        if "-packages" in place and Path(place).is_dir()
        for name in sorted(os.listdir(place))
        if name.endswith((".dist-info", ".egg-info"))
    ]
    settings = {key: str(value) for key, value in jax.config.values.items()}
    read = {key: value for key, value in os.environ.items() if key.startswith(ENVIRONMENT)}
    python = sys.version, sys.prefix, tuple(sys.path)
    return digest.hexdigest(), python, installed, sorted(settings.items()), read
