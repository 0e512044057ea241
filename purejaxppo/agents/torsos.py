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
from purejaxppo.config import tracing
from purejaxppo.config.references import load
from purejaxppo.config.schema import NetworkConfig

BUILT_IN = ("separate", "shared")
"""Values of `network.torso` that are no user's own."""


class Torso(NamedTuple):
    """Torsos of policy and critic; without a critic's, both share the policy's features."""

    actor: Any
    critic: Any = None


_MADE: dict[tuple[int, str], tuple[Any, Any]] = {}
"""Torsos of classes and functions, by these and the network's config."""


def is_shared(config: NetworkConfig) -> bool:
    """True if policy and critic share one torso."""
    return config.torso == "shared" or (is_own(config) and make(config).critic is None)


def is_own(config: NetworkConfig) -> bool:
    """True if a config has torsos of a user's own."""
    return config.torso not in BUILT_IN


def make(config: NetworkConfig) -> Torso:
    """The torsos that a config refers to: instances, of a class for policy and critic each one.

    Classes and functions are called with the network's config if they take it.

    Raises:
        ValueError: they cannot be loaded or made, or lack init and apply.
    """
    where = f"network.torso = {config.torso}"
    found = load(config.torso, "network.torso")
    is_made = isinstance(found, Torso) or not callable(found) or hasattr(type(found), "apply")
    made = found if is_made else _once(found, config, where)
    torso = made if isinstance(made, Torso) else Torso(made, made)
    for one in (torso.actor, torso.critic):
        if one is not None and not (hasattr(one, "init") and hasattr(one, "apply")):
            raise ValueError(
                f"{where} is a {type(one).__name__} without init(key, obs) and apply(params, obs), "
                f"and so no torso"
            )
    return torso


def _once(found: Any, config: NetworkConfig, where: str) -> Any:
    """Calls a class or function once, since training and evaluation each trace its result."""
    key = id(found), repr(config)
    if key not in _MADE:
        _MADE[key] = found, _called(found, config, where)  # found too: its id stays its own
    return _MADE[key][1]


def _called(found: Any, config: NetworkConfig, where: str) -> Any:
    """Calls a class or function, with the network's config if it takes that."""
    if tracing.takes(found, "config"):
        return tracing.call(found, where, config=config)
    return tracing.call(found, where)


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
        raise ValueError(f"{where} keeps {other!r} besides its parameters: leave it out")
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
