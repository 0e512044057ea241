"""What all tests share: two CPU devices, and small configurations."""

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)  # before JAX's first use of a back end

from purejaxppo.config import Config, EnvConfig, EvalConfig, NetworkConfig, PPOConfig

SECTIONS = {"env": EnvConfig, "network": NetworkConfig, "ppo": PPOConfig, "eval": EvalConfig}
SMALL = {
    "env": {"name": "dummy/constant", "num_envs": 4},
    "network": {"hidden": (8,)},
    "ppo": {"rollout_length": 12, "num_minibatches": 2, "num_epochs": 2},
}


@pytest.fixture(scope="session")
def make_config():
    """A function: keyword arguments are sections (dicts, over small defaults) or fields."""

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
