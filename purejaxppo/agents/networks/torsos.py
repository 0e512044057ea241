"""Users' own torsos: networks from observations to features, behind the library's heads.

A torso is any object with `init(key, obs) -> params` and `apply(params, obs) -> features`: a
flax.linen module has both, and plain JAX needs no more. Observations are the agent's own, [B, ...],
normalised if configured, as one array or, of `Dict` spaces, a dict of the parts; features [B, F].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo import spaces
from purejaxppo.aliases import Array, Key, Obs, Params
from purejaxppo.config import extensions, tracing
from purejaxppo.config.references import load
from purejaxppo.config.schema import NetworkConfig

BUILT_IN = ("separate", "shared")
"""Values of `network.torso` that are no user's own."""


class Torso(NamedTuple):
    """Torsos of policy and critic; without a critic's, both share the policy's features."""

    actor: Any
    critic: Any = None


class Functions(NamedTuple):
    """The functions of a torso, without the object, which flax would take for a submodule."""

    init: Callable[[Key, Obs], Params]
    apply: Callable[[Params, Obs], Array]


def make(config: NetworkConfig) -> Torso | None:
    """The functions of a config's custom torsos; None for the library's.

    An object is the torso of policy and critic. Classes and functions are called with the network's
    config if they take it.

    Raises:
        ValueError: they cannot be loaded or made, or lack init and apply.
    """
    if config.torso in BUILT_IN:
        return None
    point, where = extensions.TORSO, f"network.torso = {config.torso}"
    found = load(config.torso, point.field)
    takes_config = not extensions.accepts(point, found) and tracing.takes(found, "config")
    options = {"config": config} if takes_config else {}
    made = extensions.make(point, config.torso, **options)
    torso = made if isinstance(made, Torso) else Torso(made, made)
    for one in torso:
        if one is not None:
            extensions.check(point, one, f"{where} has")
    return Torso(*(one if one is None else Functions(one.init, one.apply) for one in torso))


def init(torso: Any, space: spaces.Space, where: str) -> Callable[[Key], Params]:
    """A function, key -> parameters of a torso for observations of `space`.

    Under vmap it runs for one key after another: JAX's batched QR can deadlock on a CPU.

    Raises:
        ValueError: the torso cannot be traced, or keeps state besides its parameters.
    """
    obs = jax.tree.map(jnp.asarray, spaces.example(space, (1,)))

    def parameters(key: Key) -> Params:
        return torso.init(key, obs)

    found = tracing.check(parameters, where, "(key, obs)", jax.random.key(0))
    if isinstance(found, dict) and "params" in found and len(found) > 1:
        other = next(name for name in found if name != "params")
        raise ValueError(f"{where} has variables {other!r}, but only parameters are supported")
    shape = tracing.check(torso.apply, where, "(params, obs)", found, obs)
    if len(getattr(shape, "shape", ())) != 2 or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ValueError(
            f"{where} gives {tracing.shapes_of(shape)} for one observation, and not features "
            f"float32 [1, F]"
        )
    return jax.custom_batching.sequential_vmap(parameters)


def apply(torso: Any, params: Params, obs: Obs, space: spaces.Space) -> Array:
    """Features [..., F] in float32 of observations [..., *shape]."""
    example = spaces.example(space)
    first, shape = jax.tree.leaves(obs)[0], jax.tree.leaves(example)[0].shape
    lead = first.shape[: first.ndim - len(shape)]
    rows = jax.tree.map(lambda x, one: x.reshape((-1, *one.shape)), obs, example)
    features = torso.apply(params, rows).astype(jnp.float32)
    return features.reshape((*lead, -1))
