"""purejaxppo: PPO with rollout, advantages and update in one compiled program.

Training is a pure function of a key:

    import jax
    from purejaxppo import evaluate, load_config, make_train, restore

    train = jax.jit(jax.vmap(make_train(load_config("cartpole.yaml"))))
    result = train(jax.random.split(jax.random.key(0), 8))
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from purejaxppo.moved import RENAMED, OldPaths

if TYPE_CHECKING:
    from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
    from purejaxppo.agents.networks.torsos import Torso
    from purejaxppo.config.files import load_config
    from purejaxppo.config.schema import Config
    from purejaxppo.runs.agent import Agent
    from purejaxppo.runs.callbacks import Callback, CallbackContext
    from purejaxppo.runs.checkpoint import restore
    from purejaxppo.runs.evaluation import Evaluation, evaluate
    from purejaxppo.runs.library import Run, load, train
    from purejaxppo.runs.pure_training import Curves, TrainResult, hyperparams, make_train

__version__ = "0.2.0"

_MODULES = {
    "Agent": "runs.agent",
    "Callback": "runs.callbacks",
    "Config": "config.schema",
    "Curves": "runs.pure_training",
    "Evaluation": "runs.evaluation",
    "CallbackContext": "runs.callbacks",
    "Run": "runs.library",
    "AuxiliaryLoss": "agents.extras.auxiliary_losses",
    "Torso": "agents.networks.torsos",
    "TrainResult": "runs.pure_training",
    "evaluate": "runs.evaluation",
    "hyperparams": "runs.pure_training",
    "load": "runs.library",
    "load_config": "config.files",
    "make_train": "runs.pure_training",
    "restore": "runs.checkpoint",
    "train": "runs.library",
}

__all__ = [
    "Agent",
    "AuxiliaryLoss",
    "Callback",
    "CallbackContext",
    "Config",
    "Curves",
    "Evaluation",
    "Run",
    "Torso",
    "TrainResult",
    "evaluate",
    "hyperparams",
    "load",
    "load_config",
    "make_train",
    "restore",
    "train",
]


def __getattr__(name: str):
    """Import a public name on first use, because processes of simulators must not import JAX."""
    name = RENAMED.get(name, name)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """A package whose public names are not replaced by submodules of the same name.

    Importing a submodule sets it as an attribute of its package. After `import
    purejaxppo.evaluate`, `purejaxppo.evaluate` would be the module instead of the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
sys.meta_path.append(OldPaths())
