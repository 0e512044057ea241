"""Action masks: give forbidden discrete actions a probability of 0."""

import chex
import jax.numpy as jnp
import numpy as np

from purejaxppo import spaces
from purejaxppo.agents.networks.distributions import parameter_kinds
from purejaxppo.aliases import Array


def flat_mask(mask: Array | dict[str, Array], space: spaces.Space) -> Array:
    """Return a mask as one array [..., L]."""
    if not isinstance(mask, dict):
        return mask
    assert isinstance(space, spaces.Dict)
    named = [(name, part) for name, part in space.spaces if "logit" in parameter_kinds(part)]
    parts = [flat_mask(mask[name], part) for name, part in named]
    return jnp.concatenate(parts, axis=-1)


def forbid(
    params: Array,
    mask: Array | dict[str, Array],
    space: spaces.Space,
    impossible: float,
    *,
    continuous: str = "gaussian",
) -> Array:
    """Give forbidden actions the logit `impossible`; return the parameters [..., P].

    Args:
        params: parameters of `for_space(space)`, float [..., P].
        mask: [..., L], nonzero where an action is allowed, in the order of the logits. For a `Dict`
            action space, alternatively a dict of the masks of its discrete parts.
        space: the action space.
        impossible: logit of a forbidden action.
        continuous: see `for_space`.

    Raises:
        ValueError: the mask does not have one entry per logit.

    Reference: Huang & Ontañón 2022, https://arxiv.org/abs/2006.14171.
    """
    mask = flat_mask(mask, space)
    is_logit = parameter_kinds(space, continuous) == "logit"
    size = int(is_logit.sum())
    if mask.shape[-1] != size:
        raise ValueError(
            f"the action mask has {mask.shape[-1]} entries, but there are {size} discrete actions. "
            f"In the environment or a wrapper, return one entry per discrete action, in the order "
            f"of the parts."
        )
    chex.assert_shape(params, (*mask.shape[:-1], len(is_logit)))
    allowed = jnp.concatenate([mask != 0, jnp.ones((*mask.shape[:-1], 1), bool)], -1)
    index = np.where(is_logit, np.cumsum(is_logit) - 1, size)
    return jnp.where(allowed[..., index], params, impossible)
