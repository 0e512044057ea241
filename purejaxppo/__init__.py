"""purejaxppo: PPO with rollout, advantages and update in one compiled program.

    import purejaxppo as ppo

    run = ppo.train("cartpole.yaml", ppo={"gamma": 0.98})
    run.plot()                                          # learning curve
    ppo.evaluate(run, episodes=100)
    ppo.video(run, "cartpole.mp4")
    ppo.export(run, "cartpole.onnx")
    run = ppo.load("runs/cartpole-s0")                  # also a run of the command line

    table = ppo.sweep("cartpole.yaml", grid={"ppo.gamma": [0.9, 0.99]}, num_seeds=8)
    table.best.settings, table.best.agents

Training is also a pure function of a key:

    config = ppo.load_config("cartpole.yaml", total_timesteps=100_000)
    train = jax.jit(jax.vmap(ppo.make_train(config)))
    result = train(jax.random.split(jax.random.key(0), 8))
    ppo.Agent(config, result.seed(0).agent).save("cartpole.agent")

`dir(purejaxppo)` is the public interface. Names are loaded when they are first used, so `import
purejaxppo` does not import JAX.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from purejaxppo.config.hints import nearest
from purejaxppo.moved import RENAMED, OldPaths

if TYPE_CHECKING:
    from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
    from purejaxppo.agents.extras.intrinsic.base import Intrinsic
    from purejaxppo.agents.networks.distributions import Distribution
    from purejaxppo.agents.networks.torsos import Torso
    from purejaxppo.anatomy.measure import anatomy
    from purejaxppo.anatomy.report import Anatomy
    from purejaxppo.config.files import load_config
    from purejaxppo.config.schema import Config
    from purejaxppo.envs.base import MultiStep, MultiTask, Task, TaskStep
    from purejaxppo.envs.wrappers import Wrapper
    from purejaxppo.export.files import export
    from purejaxppo.learner import Learner, Parts
    from purejaxppo.runs.agent import Agent
    from purejaxppo.runs.callbacks import Callback, CallbackContext
    from purejaxppo.runs.checkpoint import restore
    from purejaxppo.runs.evaluation import Evaluation, evaluate
    from purejaxppo.runs.library import Run, load, train, video
    from purejaxppo.runs.loggers import Logger, LoggerContext
    from purejaxppo.runs.pure_training import Curves, TrainResult, hyperparams, make_train
    from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete
    from purejaxppo.sweep.library import Setting, Sweep, sweep
    from purejaxppo.types import Hyperparams

__version__ = "0.3.0"

_MODULES = {
    "Agent": "runs.agent",
    "Anatomy": "anatomy.report",
    "AuxiliaryLoss": "agents.extras.auxiliary_losses",
    "Box": "spaces",
    "Callback": "runs.callbacks",
    "CallbackContext": "runs.callbacks",
    "Config": "config.schema",
    "Curves": "runs.pure_training",
    "Dict": "spaces",
    "Discrete": "spaces",
    "Distribution": "agents.networks.distributions",
    "Evaluation": "runs.evaluation",
    "Hyperparams": "types",
    "Intrinsic": "agents.extras.intrinsic.base",
    "Learner": "learner",
    "Logger": "runs.loggers",
    "LoggerContext": "runs.loggers",
    "MultiDiscrete": "spaces",
    "MultiStep": "envs.base",
    "MultiTask": "envs.base",
    "Parts": "learner",
    "Run": "runs.library",
    "Setting": "sweep.library",
    "Sweep": "sweep.library",
    "Task": "envs.base",
    "TaskStep": "envs.base",
    "Torso": "agents.networks.torsos",
    "TrainResult": "runs.pure_training",
    "Wrapper": "envs.wrappers",
    "anatomy": "anatomy.measure",
    "evaluate": "runs.evaluation",
    "export": "export.files",
    "hyperparams": "runs.pure_training",
    "load": "runs.library",
    "load_config": "config.files",
    "make_train": "runs.pure_training",
    "restore": "runs.checkpoint",
    "sweep": "sweep.library",
    "train": "runs.library",
    "video": "runs.library",
}
"""Module of each public name."""

__all__ = [
    "Agent",
    "Anatomy",
    "AuxiliaryLoss",
    "Box",
    "Callback",
    "CallbackContext",
    "Config",
    "Curves",
    "Dict",
    "Discrete",
    "Distribution",
    "Evaluation",
    "Hyperparams",
    "Intrinsic",
    "Learner",
    "Logger",
    "LoggerContext",
    "MultiDiscrete",
    "MultiStep",
    "MultiTask",
    "Parts",
    "Run",
    "Setting",
    "Sweep",
    "Task",
    "TaskStep",
    "Torso",
    "TrainResult",
    "Wrapper",
    "anatomy",
    "evaluate",
    "export",
    "hyperparams",
    "load",
    "load_config",
    "make_train",
    "restore",
    "sweep",
    "train",
    "video",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because processes of simulators must not import JAX."""
    name = RENAMED.get(name, name)
    if name not in _MODULES:
        close = None if name.startswith("_") else nearest(name, __all__)
        hint = f". Did you mean {close!r}?" if close else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


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
