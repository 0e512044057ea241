"""Custom torsos: networks from observations to features, in front of the built-in heads.

A torso is any object with `init(key, obs) -> params` and `apply(params, obs) -> features`, such as
a flax.linen module or plain JAX functions. Observations are [B, ...], normalised if configured: an
array or, for `Dict` spaces, a dict of the parts. Features are [B, F].
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
"""Values of `network.torso` that are not custom code."""


class Torso(NamedTuple):
    """Torsos of policy and critic. Without `critic`, both use the features of `actor`."""

    actor: Any
    critic: Any = None


class Functions(NamedTuple):
    """Functions of a torso, without its object: Flax would make that a submodule."""

    init: Callable[[Key, Obs], Params]
    apply: Callable[[Params, Obs], Array]


def make(config: NetworkConfig) -> Torso | None:
    """Return the custom torsos of the config; None for built-in ones.

    An object is the torso of policy and critic. Classes and functions are called with the network's
    config if they have an argument `config`.

    Raises:
        ValueError: a torso cannot be loaded or created, or lacks init or apply.
    """
    if config.torso in BUILT_IN:
        return None
    point, field = extensions.TORSO, f"network.torso = {config.torso}"
    value = load(config.torso, point.field)
    takes_config = not extensions.accepts(point, value) and tracing.has_parameter(value, "config")
    options = {"config": config} if takes_config else {}
    custom = extensions.make(point, config.torso, **options)
    torso = custom if isinstance(custom, Torso) else Torso(custom, custom)
    for part in torso:
        if part is not None:
            extensions.check(point, part, f"{field} has")
    return Torso(*(part if part is None else Functions(part.init, part.apply) for part in torso))


def init(torso: Any, space: spaces.Space, field: str) -> Callable[[Key], Params]:
    """Return a function, key -> parameters of a torso for observations of `space`.

    Under vmap it runs for one key after the other, because JAX's batched QR can deadlock on a CPU.

    Args:
        torso: functions `init` and `apply`.
        space: space of the observations.
        field: config field, for errors.

    Raises:
        ValueError: the torso cannot be traced, or has variables other than parameters.
    """
    obs = jax.tree.map(jnp.asarray, spaces.example(space, (1,)))

    def parameters(key: Key) -> Params:
        return torso.init(key, obs)

    params = tracing.check(parameters, field, "(key, obs)", jax.random.key(0))
    if isinstance(params, dict) and "params" in params and len(params) > 1:
        other = next(name for name in params if name != "params")
        raise ValueError(
            f"{field} has variables {other!r}, but only parameters are supported. Use layers "
            f"without other variables, such as LayerNorm instead of BatchNorm."
        )
    shape = tracing.check(torso.apply, field, "(params, obs)", params, obs)
    if len(getattr(shape, "shape", ())) != 2 or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ValueError(
            f"{field} returns {tracing.shapes_of(shape)} for one observation. Return features, "
            f"float32 [1, F]."
        )
    return jax.custom_batching.sequential_vmap(parameters)


def apply(torso: Any, params: Params, obs: Obs, space: spaces.Space) -> Array:
    """Return the features [..., F] of observations [..., *shape], as float32."""
    example = spaces.example(space)
    first, shape = jax.tree.leaves(obs)[0], jax.tree.leaves(example)[0].shape
    lead = first.shape[: first.ndim - len(shape)]
    rows = jax.tree.map(lambda x, one: x.reshape((-1, *one.shape)), obs, example)
    features = torso.apply(params, rows).astype(jnp.float32)
    return features.reshape((*lead, -1))
