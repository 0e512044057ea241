"""purejaxppo: PPO with rollout, advantages and update in one compiled program.

Training is a pure function of a key:

    import jax
    from purejaxppo import evaluate, load_config, make_train, restore

    train = jax.jit(jax.vmap(make_train(load_config("cartpole.yaml"))))
    result = train(jax.random.split(jax.random.key(0), 8))
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purejaxppo.config.files import load_config
    from purejaxppo.config.schema import Config
    from purejaxppo.evaluation import Agent, Evaluation, evaluate
    from purejaxppo.pure_training import Curves, TrainResult, hyperparams, make_train
    from purejaxppo.runs.checkpoint import restore

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Config",
    "Curves",
    "Evaluation",
    "TrainResult",
    "evaluate",
    "hyperparams",
    "load_config",
    "make_train",
    "restore",
]

_MODULES = {
    "Agent": "evaluation",
    "Config": "config.schema",
    "Curves": "pure_training",
    "Evaluation": "evaluation",
    "TrainResult": "pure_training",
    "evaluate": "evaluation",
    "hyperparams": "pure_training",
    "load_config": "config.files",
    "make_train": "pure_training",
    "restore": "runs.checkpoint",
}


def __getattr__(name: str):
    """Imports what is asked for: the processes that run simulators must not import JAX."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
