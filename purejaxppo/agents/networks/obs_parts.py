"""Parts of a vector observation (`env.obs_parts`), which networks read as a `Dict`.

Simulators, storage and normalisation see the vector.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.networks.build import Apply, Network
from purejaxppo.aliases import Array, Carry, Obs, Params
from purejaxppo.spaces import Box, Dict, Space
from purejaxppo.types import Outputs

Parts = Mapping[str, tuple[int, ...]]
"""First and last + 1 index of each range of a part, by its name: {legs: (0, 8, 20, 28)}."""


def ranges(indices: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the half-open ranges of a part, (first, last + 1) each."""
    return list(zip(indices[::2], indices[1::2], strict=True))


def dict_space(space: Space, parts: Parts) -> Dict:
    """Return the space that networks read instead of a vector.

    Raises:
        ValueError: the observation is not a vector, or the parts do not cover it.
    """
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(f"env.obs_parts needs a vector observation. The task has {space}.")
    size = max(stop for indices in parts.values() for _, stop in ranges(indices))
    if size != space.shape[0]:
        raise ValueError(
            f"env.obs_parts has {size} entries, but the observation has {space.shape[0]}. "
            f"Each entry must be in exactly one part."
        )
    low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))

    def part(indices: tuple[int, ...]) -> Box:
        rows = np.concatenate([np.arange(*limits) for limits in ranges(indices)])
        return Box.between(low[rows], high[rows], space.dtype)

    return Dict.of({name: part(indices) for name, indices in parts.items()})


def split(obs: Array, parts: Parts) -> dict[str, Array]:
    """Return the parts of vectors [..., F] by name."""

    def part(indices: tuple[int, ...]) -> Array:
        pieces = [obs[..., first:stop] for first, stop in ranges(indices)]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)

    return {name: part(indices) for name, indices in parts.items()}


def reading_vectors(network: Network, parts: Parts) -> Network:
    """Return a network of a `Dict` observation that takes vectors."""

    def wrapped(apply: Apply) -> Apply:
        def apply_to_parts(params: Params, carry: Carry, obs: Obs, *rows: Array | None) -> Outputs:
            return apply(params, carry, split(obs, parts), *rows)

        return apply_to_parts

    return network._replace(apply=wrapped(network.apply), unroll=wrapped(network.unroll))
