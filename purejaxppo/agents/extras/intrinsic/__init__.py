"""Intrinsic rewards (curiosity)."""

from purejaxppo.agents.extras.intrinsic import icm, own, rnd
from purejaxppo.agents.extras.intrinsic.base import BonusRows, Intrinsic, none
from purejaxppo.config.schema import Config
from purejaxppo.types import EnvSpaces

__all__ = ["BonusRows", "Intrinsic", "make"]


def make(config: Config, spec: EnvSpaces) -> Intrinsic:
    """Return the intrinsic reward of the config.

    Args:
        config: settings of the run.
        spec: spaces of the environments; observations are those that the network gets.

    Raises:
        ValueError: see `own.make`.
    """
    settings = config.intrinsic
    if settings.kind == "rnd":
        return rnd.make(spec.observation, config.network, settings)
    if settings.kind == "icm":
        return icm.make(spec.observation, spec.action, config.network, settings)
    return none() if settings.kind == "none" else own.make(config, spec)
