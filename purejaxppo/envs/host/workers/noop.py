"""Environments that do nothing, to measure what workers cost without a simulator.

This module does not import JAX, because worker processes import it.
"""

from dataclasses import dataclass
from typing import Any

from purejaxppo.envs.host.workers.factory import Gymnasium, Maker


@dataclass(frozen=True)
class NoOp:
    """Makes environments whose `reset` and `step` always return the same first observation."""

    make: Maker

    def __call__(self, render_mode: str | None = None) -> Gymnasium:
        """Create the real environment, reset it once, and replace its methods."""
        env = self.make(render_mode)
        obs, info = env.reset(seed=0)
        result = obs, 0.0, False, False, info

        def reset(**options: Any) -> Any:
            del options
            return obs, info

        def step(action: Any) -> Any:
            del action
            return result

        env.reset, env.step = reset, step
        return env
