"""Shared by all tests: their compilation cache and home folder, two CPU devices, small configs.

Everything that processes inherit is set here, before JAX is imported.
"""

import gc
import logging
import os
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache"
(CACHE / "home").mkdir(parents=True, exist_ok=True)
for name in [name for name in os.environ if name.startswith("XDG_")]:
    del os.environ[name]
os.environ |= {
    "HOME": str(CACHE / "home"),  # for files that libraries write there
    "MALLOC_ARENA_MAX": "2",  # of child processes: threads that compile would keep more
    "MESA_SHADER_CACHE_DIR": str(CACHE / "home"),  # Mesa does not read HOME
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.02",  # reading takes as long below this
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # Two processes may write an entry at the same time; an unreadable one is compiled again.
    "PYTHONWARNINGS": "ignore:Error reading persistent compilation cache",
    # See the fixture `optimized`; the newer emitters of XLA take 3 times as long to compile, and
    # programs divided for many cores a sixth longer.
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters "
    "--xla_cpu_parallel_codegen_split_count=1",
}

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)  # before JAX's first use of a back end

from support.memory import LARGEST, drop_large_programs
from support.optimizations import optimization

from purejaxppo.config.schema import Config, EnvConfig, EvalConfig, NetworkConfig, PPOConfig

pytest_plugins = ["support.runs"]

SECTIONS = {"env": EnvConfig, "network": NetworkConfig, "ppo": PPOConfig, "eval": EvalConfig}
SMALL = {
    "env": {"name": "dummy/constant", "num_envs": 4},
    "network": {"hidden": (8,)},
    "ppo": {"rollout_length": 12, "num_minibatches": 2, "num_epochs": 2},
}


LONG = (
    "processes",
    "test_examples",
    "test_policies",
    "test_loop",
    "test_members",
    "test_robot",
    "notebook",
    "test_mutants",
    "test_playground",
    "test_own_environment",
    "test_network_and_loss",
    "test_export",
    "test_jumanji",
    "test_sweep",
    "test_tutorials",
)
"""Slow groups, which start first: otherwise one process may run one alone at the end."""
SHORT = "contract-"
"""Prefix of the names of groups of a few seconds, which come last to balance all processes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep the tests of a file in one process unless they name a group; long groups come first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: rank(item.get_closest_marker("xdist_group").args[0]))


def rank(group):
    """Return the index of a group in `LONG`, or the next one, or the last for short groups."""
    places = [i for i, name in enumerate(LONG) if group.startswith(name)]
    return min(places, default=len(LONG) + group.startswith(SHORT))


def pytest_collection_finish():
    """Exclude imported objects from garbage collection, and make it rare.

    Collections used a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def no_more_memory_than_a_file_needs():
    """Free the objects of a file, and compiled programs before they use too much memory."""
    yield
    drop_large_programs()
    gc.collect()
    gc.freeze()


@pytest.fixture
def optimized():
    """Compile as for users, in tests of equal bits or of learning."""
    with optimization():
        yield


@pytest.fixture(autouse=True)
def limited_memory():
    """Drop compiled programs that use too much memory."""
    yield
    drop_large_programs(LARGEST)


@pytest.fixture(autouse=True)
def fresh_logger():
    """Undo `print_warnings`, which an earlier test of the process may have called."""
    logger = logging.getLogger("purejaxppo")
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture(scope="session")
def make_config():
    """A function that makes a config from sections (dicts, over small defaults) or fields."""

    def make(**overrides):
        sections = {
            name: kind(**{**SMALL.get(name, {}), **overrides.pop(name, {})})
            for name, kind in SECTIONS.items()
        }
        return Config(**{"total_timesteps": 1000, "num_shards": 1, **sections, **overrides})

    return make


@pytest.fixture
def key():
    """A random key."""
    return jax.random.key(0)
