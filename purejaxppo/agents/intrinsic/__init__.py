"""Intrinsic rewards for novelty: `make` returns the one that a config names."""

from purejaxppo.agents.intrinsic import icm, rnd
from purejaxppo.agents.intrinsic.base import Intrinsic, Rows, none
from purejaxppo.config.schema import Config

__all__ = ["Intrinsic", "Rows", "make"]


def make(config: Config, spec) -> Intrinsic:
    """The intrinsic reward of a config, for environments of `spec`."""
    settings = config.intrinsic
    if settings.kind == "rnd":
        return rnd.make(spec.observation, config.network, settings)
    if settings.kind == "icm":
        return icm.make(spec.observation, spec.action, config.network, settings)
    return none()
