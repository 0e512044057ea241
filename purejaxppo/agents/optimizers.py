"""Optimisers by name, without step size, over all parameters as one vector.

The step size stays a traced number that multiplies the updates. `on_tree` restores the shapes of
parameters for optimisers that need them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.flatten_util import ravel_pytree

from purejaxppo.aliases import Array, MetricDict, OptState, Params
from purejaxppo.config import extensions
from purejaxppo.config.schema import PPOConfig

LANES = 64
"""Lengths of vectors are rounded up to a multiple of this."""
FASTER, SLOWER = 1.5, 1 / 1.5
"""Factors by which the adaptive rate changes."""
RATE_FACTOR = "charts/rate_factor"
"""Metric: factor of the adaptive rate."""


def muon(config: PPOConfig) -> optax.GradientTransformation:
    """Return Muon: orthogonalised momentum for matrices, Nadam for other parameters.

    Its updates have Adam's size (root mean square 0.2 per element), so Adam's learning rates can be
    used.

    Reference: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025,
    https://arxiv.org/abs/2502.16982, section 2.2.
    """
    del config
    return optax.chain(optax.contrib.muon(1.0, consistent_rms=0.2), optax.scale(-1.0))


PLAIN_OPTIMIZERS: dict[str, Callable[[PPOConfig], optax.GradientTransformation]] = {
    "adam": lambda config: optax.scale_by_adam(eps=config.adam_eps),
    "adamw": lambda config: optax.scale_by_adam(eps=config.adam_eps),
    "nadam": lambda config: optax.scale_by_adam(eps=config.adam_eps, nesterov=True),
    "adabelief": lambda config: optax.scale_by_belief(),
    "lion": lambda config: optax.scale_by_lion(),
    "rmsprop": lambda config: optax.scale_by_rms(decay=0.99, eps=config.adam_eps),
    "sgd": lambda config: optax.identity(),
}
"""Elementwise optimisers. They do not need shapes and act on the flat vector."""


class Optimizer(NamedTuple):
    """An optimiser over all parameters as one vector [P]."""

    init: Callable[[Array], OptState]
    """Parameters [P] -> state."""
    update: Callable[[Array, OptState, Array], tuple[Array, OptState]]
    """(gradient [P], state, parameters [P]) -> (updates [P], state after the step)."""
    unravel: Callable[[Array], Params]
    """Parameters [P] -> parameter tree."""
    rate: Callable[[OptState, Array], Array] = lambda state, rate: rate
    """(state, step size of the schedule) -> step size of the gradient steps of an update."""
    adapt: Callable[[OptState, Array, Array], OptState] = lambda state, rate, kl: state
    """(state, step size of the schedule, mean KL of an update) -> state for the next update."""


def make(config: PPOConfig, params: Params) -> Optimizer:
    """Return the optimiser of the config, with its weight decay and adaptive rate.

    Args:
        config: settings of the algorithm.
        params: parameter tree, for its shapes.

    Raises:
        ValueError: a custom optimiser cannot be loaded or created.
    """
    _, unravel = flatten(params)
    if config.optimizer in PLAIN_OPTIMIZERS:
        transforms = [PLAIN_OPTIMIZERS[config.optimizer](config)]
    elif config.optimizer == "muon":
        transforms = [on_tree(muon(config), unravel)]
    else:
        transforms = [
            on_tree(extensions.make(extensions.OPTIMIZER, config.optimizer, config), unravel)
        ]
    if config.weight_decay:
        transforms.append(weight_decay(config.weight_decay, mask_of_matrices(params)))
    adaptive = config.learning_rate_schedule == "adaptive"
    if adaptive:
        transforms.append(RATE_STATE)
    chain = transforms[0] if len(transforms) == 1 else optax.chain(*transforms)
    if not adaptive:
        return Optimizer(chain.init, chain.update, unravel)
    limits = config.min_learning_rate, config.max_learning_rate

    def scaled(state: OptState, rate: Array) -> Array:
        return rate * limited(state[-1], rate, *limits)

    def adapt(state: OptState, rate: Array, kl: Array) -> OptState:
        factor = adapted(limited(state[-1], rate, *limits), kl, config.target_kl)
        return (*state[:-1], limited(factor, rate, *limits))

    return Optimizer(chain.init, chain.update, unravel, scaled, adapt)


def init_state(config: PPOConfig, params: Params) -> OptState:
    """Return the initial state of the config's optimiser, over the parameters as one vector."""
    return make(config, params).init(flatten(params)[0])


def flatten(params: Params) -> tuple[Array, Callable[[Array], Params]]:
    """Return all parameters as one vector [P], and the inverse function.

    One vector needs a single reduction over devices and a single loop of Adam. P is rounded up to a
    multiple of LANES. XLA's CPU code for a loop of odd length is scalar and many times slower.
    """
    flat, unravel = ravel_pytree(params)
    padded = jnp.pad(flat, (0, -flat.size % LANES))
    return padded, lambda padded: unravel(padded[: flat.size])


CUSTOM_ENTRIES = frozenset(("terms", "torso", "actor_torso", "critic_torso"))
"""Entries of an agent's parameters that may be custom, with any names inside."""


def projection(params: Params, limits: dict[str, tuple[float, float]]) -> Callable[[Array], Array]:
    """Return a function of the flat parameters that clips parameters to their limits.

    Args:
        params: parameter tree.
        limits: name of a parameter -> (low, high).
    """
    ranges, start = [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [getattr(key, "key", None) for key in path]
        name = names[-1]
        if name in limits and not CUSTOM_ENTRIES.intersection(names):
            ranges.append((slice(start, start + leaf.size), limits[name]))
        start += leaf.size

    def project(flat: Array) -> Array:
        for index, (low, high) in ranges:
            flat = flat.at[index].set(jnp.clip(flat[index], low, high))
        return flat

    return project


def metric_names(config: PPOConfig) -> tuple[str, ...]:
    """Return the names of the optimiser's metrics."""
    return (RATE_FACTOR,) if config.learning_rate_schedule == "adaptive" else ()


def metrics(config: PPOConfig, state: OptState, rate: Array) -> MetricDict:
    """Return the optimiser's metrics of an update, scalars.

    Args:
        config: settings of the algorithm.
        state: state of the optimiser before the update.
        rate: step size of the schedule.
    """
    names = metric_names(config)
    limits = config.min_learning_rate, config.max_learning_rate
    # The factor is the state of the last transformation of the chain.
    return {name: limited(state[-1], rate, *limits) for name in names}


def on_tree(
    transform: optax.GradientTransformation, unravel: Callable[[Array], Params]
) -> optax.GradientTransformation:
    """Convert a transformation of trees to one of vectors [P].

    Args:
        transform: a transformation of trees.
        unravel: vector [P] -> tree.
    """

    def init(flat: Array) -> OptState:
        return transform.init(unravel(flat))

    def update(
        gradient: Array, state: OptState, flat: Array | None = None
    ) -> tuple[Array, OptState]:
        tree = None if flat is None else unravel(flat)
        updates, state = transform.update(unravel(gradient), state, tree)
        vector, _ = ravel_pytree(updates)
        return jnp.pad(vector, (0, gradient.size - vector.size)), state

    return optax.GradientTransformation(init, update)


def mask_of_matrices(params: Params) -> Array:
    """Return 1 for elements of matrices and convolutions, 0 for those of vectors; [size]."""
    vector, _ = ravel_pytree(jax.tree.map(lambda x: jnp.full(x.shape, float(x.ndim > 1)), params))
    return vector


def weight_decay(weight: float, mask: Array) -> optax.GradientTransformation:
    """Return a gradient transformation for decoupled weight decay.

    It adds `weight` times the parameters to the updates, before their multiplication by the
    negative learning rate.

    Args:
        weight: coefficient.
        mask: 1 for parameters that decay, 0 for others, [size].

    Reference: Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101.
    """

    def update(
        updates: Array, state: OptState, flat: Array | None = None
    ) -> tuple[Array, OptState]:
        assert flat is not None
        padded = jnp.pad(mask, (0, updates.size - mask.size))
        return updates + weight * padded * flat, state

    return optax.GradientTransformation(lambda flat: optax.EmptyState(), update)


RATE_STATE = optax.GradientTransformation(
    lambda flat: jnp.ones(()), lambda updates, factor, flat=None: (updates, factor)
)
"""Stores the factor of the adaptive rate, as the last state of a chain."""


def limited(factor: Array, rate: Array, low: float, high: float) -> Array:
    """Clip a factor of a step size, so that their product is in [low, high].

    A step size below `low` is not raised: after a warm-up, the factor would still be too large.
    """
    size = jnp.maximum(rate, 1e-30)  # a step size of 0 stays 0
    return jnp.clip(factor, jnp.minimum(low / size, 1.0), high / size)


def adapted(factor: Array, kl: Array, target_kl: float) -> Array:
    """Return the factor of the step size of the next update, to keep its KL near a target.

    The factor is divided by 1.5 where the mean KL of an update exceeds twice the target, and
    multiplied by 1.5 where it is below half of it. A KL of exactly 0 has no effect: the update had
    no gradient step, or a single one, before which the policy is still the one that acted.

    rsl_rl changes the factor at each gradient step. The KL grows over the steps of an update, so
    all steps after the target is exceeded would lower the rate, and the first steps of the next
    update would raise it.

    Reference: Rudin et al. 2022, https://arxiv.org/abs/2109.11978, appendix A; rsl_rl.
    """
    too_small = (kl > 0) & (kl < target_kl / 2)
    change = jnp.where(kl > 2 * target_kl, SLOWER, jnp.where(too_small, FASTER, 1.0))
    return factor * change
