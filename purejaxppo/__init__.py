"""purejaxppo: PPO with rollout, advantages and update in one compiled program.

Training is a pure function of a key:

    import jax
    from purejaxppo import evaluate, load_config, make_train, restore

    train = jax.jit(jax.vmap(make_train(load_config("cartpole.yaml"))))
    result = train(jax.random.split(jax.random.key(0), 8))
"""

from purejaxppo.checkpoint import restore
from purejaxppo.config import Config
from purejaxppo.configio import load_config
from purejaxppo.evaluation import Agent, Evaluation, evaluate
from purejaxppo.pure import Curves, TrainResult, make_train

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Config",
    "Curves",
    "Evaluation",
    "TrainResult",
    "evaluate",
    "load_config",
    "make_train",
    "restore",
]
