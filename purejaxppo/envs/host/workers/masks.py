"""Masks of allowed actions from an environment's infos. Import it only where Gymnasium is in use.

This module does not import JAX, because worker processes import it.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.host.workers.gym_spaces import action_space
from purejaxppo.envs.host.workers.returned import reset_result
from purejaxppo.envs.teams import mask_space
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, Space


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Add `info["action_mask"]` to the observation: to its Dict, or as {"obs", "action_mask"}.

    Args:
        env: an environment whose `reset` and `step` return a mask in the info.
        name: name to print in messages.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        """Read the spaces.

        Raises:
            MakeError: the action space has no discrete part.
        """
        super().__init__(env)
        self.name = name
        mask = mask_space(action_space(env.action_space))
        if mask is None:
            raise MakeError(f"{name}: env.options.mask = true needs discrete actions. Use false.")
        space = env.observation_space
        self._parts = isinstance(space, gymnasium.spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"obs": space}
        self.observation_space = gymnasium.spaces.Dict(parts | {MASK: gymnasium_space(mask)})

    def reset(self, **options: Any) -> Any:
        """Reset the environment. The observation has the mask of the first step."""
        obs, info = reset_result(self.env.reset(**options))
        return self._with_mask(obs, info, "reset"), info

    def step(self, action: Any) -> Any:
        """Step the environment. The observation has the mask of the next step."""
        obs, *outcome, info = self.env.step(action)
        return self._with_mask(obs, info, "step"), *outcome, info

    def _with_mask(self, obs: Any, info: Mapping[str, Any], when: str) -> dict[str, Any]:
        mask = mask_in(info, self.env.action_space, f"{self.name}: env.options.mask", when)
        return {**(obs if self._parts else {"obs": obs}), MASK: mask}


def mask_in(
    info: Mapping[str, Any] | None, space: gymnasium.Space[Any], label: str, when: str
) -> Any:
    """Return the mask in an info, uint8 [n] or [sum nvec], 1 = allowed; or a dict of masks.

    Args:
        info: a dict with an `action_mask` in the form that the space's `sample` takes: an array for
            a Discrete space, arrays (or one concatenated array) for a MultiDiscrete space, and a
            dict or a tuple of masks for a Dict or Tuple space. A mask that allows nothing is
            replaced by one that allows everything, because environments return such masks at an
            episode's end.
        space: the action space.
        label: prefix of messages, such as the environment.
        when: the call that returned the info, for messages.

    Raises:
        MakeError: the mask is missing or does not match the space.
    """
    info = {} if info is None else info
    if MASK not in info:
        keys = ", ".join(map(repr, info)) or "no keys"
        raise MakeError(
            f"{label} = true needs an 'action_mask' in every info, but the info from {when} has "
            f"{keys}. Add it in the environment or a wrapper, or use false."
        )
    return _mask(info[MASK], action_space(space), f"{label}: the action_mask from {when}")


def _mask(value: Any, space: Space, label: str) -> Any:
    """Convert a mask to uint8, or to a dict of masks for a composite space."""
    if isinstance(space, Dict):
        parts = [(name, part) for name, part in space.spaces if mask_space(part) is not None]
        return {name: _mask(_part(value, name, label), part, label) for name, part in parts}
    sizes = [space.n] if isinstance(space, Discrete) else [*_nvec(space)]
    if isinstance(value, tuple | list) and isinstance(space, MultiDiscrete):
        value = np.concatenate([np.ravel(part) for part in value])
    mask = np.asarray(value).ravel()
    if mask.size != sum(sizes):
        raise MakeError(
            f"{label} has {mask.size} elements, expected {sum(sizes)}: one per choice. Correct it "
            f"in the environment or a wrapper."
        )
    wrong = mask[(mask != 0) & (mask != 1)]
    if wrong.size:
        raise MakeError(f"{label} has the value {wrong[0]}. Use 1 for allowed and 0 for forbidden.")
    choices = np.split((mask != 0).astype(np.uint8), np.cumsum(sizes)[:-1])
    return np.concatenate([part if part.any() else np.ones_like(part) for part in choices])


def _nvec(space: Space) -> tuple[int, ...]:
    assert isinstance(space, MultiDiscrete)
    return space.nvec


def _part(value: Any, name: str, label: str) -> Any:
    """Return the mask of one part of a Dict or a Tuple."""
    try:
        return value[name] if isinstance(value, Mapping) else value[int(name)]
    except (LookupError, TypeError, ValueError):
        raise MakeError(f"{label} has no entry for the part {name!r} of the action.") from None


def gymnasium_space(space: Space) -> gymnasium.Space[Any]:
    """Convert a space of `purejaxppo.spaces`, except a single `Discrete`, to Gymnasium's."""
    if isinstance(space, Dict):
        return gymnasium.spaces.Dict({name: gymnasium_space(part) for name, part in space.spaces})
    if isinstance(space, MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(list(space.nvec))
    assert isinstance(space, Box)
    bounds = (space.low, space.high)
    low, high = (np.broadcast_to(bound, space.shape).astype(space.dtype) for bound in bounds)
    return gymnasium.spaces.Box(low, high, space.shape, np.dtype(space.dtype).type)
