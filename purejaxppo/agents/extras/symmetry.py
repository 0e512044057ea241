"""Mirror symmetry of a task: augmented minibatches, or a penalty on asymmetric policies.

A mirror is a signed permutation of observations and of actions. Rows are mirrored before
normalisation, so the statistics need not be symmetric.

Mittal et al. 2024, https://arxiv.org/abs/2403.04359; Abdolhosseini et al. 2019,
https://doi.org/10.1145/3359566.3360070. The penalty is that of Yu et al. 2018,
https://arxiv.org/abs/1801.08093.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.networks.distributions import CONTINUOUS, Distribution
from purejaxppo.agents.ppo import unchanged
from purejaxppo.aliases import Array, Obs, Scalar
from purejaxppo.config.schema import Config
from purejaxppo.spaces import Box, Discrete, Space, example
from purejaxppo.types import Batch, EnvSpaces, Hyperparams, Unroll

Penalty = Callable[[Unroll, Batch, Array, Hyperparams], Scalar]
"""(forward, rows, distribution parameters of rows, hp) -> loss per row [B, (L)]. `forward` applies
the network to units: (carry, obs [B, (L), ...], start [B, (L)], absent) -> outputs."""


class Symmetry(NamedTuple):
    """Use of a mirror in an update."""

    augment: Callable[[Batch], Batch]
    """Rows of a minibatch -> rows of its gradient step."""
    penalty: Penalty
    """Additional loss per row."""
    copies: int = 1
    """Number of rows of a gradient step per row of its minibatch. The original rows come first."""


class Mirror(NamedTuple):
    """Reflection of the observations and actions of a task. Applied twice, it is the identity."""

    obs: Callable[[Obs], Obs]
    """Observations [..., n] before normalisation -> mirrored observations."""
    action: Callable[[Array], Array]
    """Actions as the policy stores them -> mirrored actions."""
    choice: Callable[[Array], Array]
    """Distribution parameters [..., P] -> choice [..., k]: the environment's action for the mode,
    or the probabilities of discrete actions."""
    mirrored_choice: Callable[[Array], Array]
    """Choice [..., k] -> its mirror image [..., k]."""


def signed_permutation(entries: Sequence[int], size: int, field: str) -> Callable[[Array], Array]:
    """Return the signed permutation of arrays [..., n] that a config field describes.

    Value i of the result is value |entries[i]| of the argument (counted from 1), with the sign of
    entries[i].

    Args:
        entries: signed indices, such as [-1, -2, 4, 3].
        size: length of the arrays, n.
        field: config field, for errors.

    Raises:
        ValueError: not n entries, not a permutation, or not its own inverse.
    """
    if len(entries) != size:
        raise ValueError(
            f"{field} = {list(entries)} has {len(entries)} entries, but needs {size}: one per "
            f"value of the observation or action."
        )
    indices = np.abs(entries) - 1
    if sorted(indices.tolist()) != list(range(size)):
        raise ValueError(
            f"{field} = {list(entries)} is not a permutation of 1 to {size}. Use each number once, "
            f"with or without a minus sign."
        )
    signs = np.sign(entries)
    for i, j in enumerate(indices):
        if indices[j] != i or signs[i] != signs[j]:
            raise ValueError(
                f"{field} = {list(entries)} is not its own inverse: entry {i + 1} is {entries[i]}, "
                f"so entry {j + 1} must be {signs[i] * (i + 1)}."
            )
    factors = signs.astype(np.float32)

    def mirror(x: Array) -> Array:
        return jnp.multiply(factors, x[..., indices])

    return mirror


def obs_mirror(config: Config, space: Space) -> Callable[[Obs], Obs]:
    """Return the function that mirrors observations.

    `env.mirror_obs` refers to the concatenation of the parts of a Dict, sorted by name.

    Raises:
        ValueError: the list does not match the space, or a part of the space is not a vector.
    """
    parts = jax.tree.leaves(example(space))
    floats = isinstance(space, Box) or all(part.dtype.kind == "f" for part in parts)
    if not floats or any(part.ndim != 1 for part in parts):
        raise ValueError(
            f"ppo.symmetry = {config.ppo.symmetry} needs observations that are vectors, but the "
            f"observation space of {config.env.name} is {space}. Use ppo.symmetry = none."
        )
    ends = np.cumsum([len(part) for part in parts]).tolist()
    mirror = signed_permutation(config.env.mirror_obs, ends[-1], "env.mirror_obs")
    if isinstance(space, Box):
        return mirror

    def mirror_parts(obs: Obs) -> Obs:
        arrays, tree = jax.tree.flatten(obs)
        image = mirror(jnp.concatenate(arrays, axis=-1))
        return jax.tree.unflatten(tree, jnp.split(image, ends[:-1], axis=-1))

    return mirror_parts


def make_mirror(config: Config, observation: Space, action: Space, dist: Distribution) -> Mirror:
    """Return the function that mirrors observations and actions.

    It uses the index lists `env.mirror_obs` and `env.mirror_action`.

    Args:
        config: settings of the run.
        observation: space of one environment's observation.
        action: space of its action.
        dist: distribution over actions.

    Raises:
        ValueError: the lists do not match the spaces, or symmetry does not support them.
    """
    env = config.env
    obs = obs_mirror(config, observation)
    if isinstance(action, Discrete):
        swap = signed_permutation(env.mirror_action, action.n, "env.mirror_action")
        if min(env.mirror_action) < 0:
            raise ValueError(
                f"env.mirror_action = {list(env.mirror_action)}: discrete actions "
                f"have no sign. Remove the minus signs."
            )
        indices = jnp.asarray(env.mirror_action, jnp.int32) - 1
        return Mirror(obs, lambda a: indices[a], jax.nn.softmax, swap)
    if isinstance(action, Box):
        flip = signed_permutation(env.mirror_action, action.shape[0], "env.mirror_action")
        if config.network.distribution not in CONTINUOUS:
            raise ValueError(
                f"ppo.symmetry = {config.ppo.symmetry} does not support network.distribution = "
                f"{config.network.distribution}. Use {', '.join(CONTINUOUS)}."
            )
        # Samples of a Beta are in (0, 1), centred at 0.5. Other samples are centred at 0.
        middle = 0.5 if config.network.distribution == "beta" else 0.0
        return Mirror(
            obs,
            lambda a: middle + flip(a - middle),
            lambda params: dist.to_env(dist.mode(params)),
            flip,
        )
    raise ValueError(
        f"ppo.symmetry = {config.ppo.symmetry} needs Box or Discrete actions, but the action space "
        f"of {env.name} is {action}. Use ppo.symmetry = none."
    )


def mirrored(mirror: Mirror, rows: Batch) -> Batch:
    """Return rows with mirrored observations and actions.

    Other arrays do not change. The carry that a recurrent network would have after mirrored steps
    is unknown; it is zero, as at the start of an episode.
    """
    return rows._replace(
        obs=mirror.obs(rows.obs),
        action=mirror.action(rows.action),
        carry=jax.tree.map(jnp.zeros_like, rows.carry),
        extra={k: mirror.obs(x) if k == "next_obs" else x for k, x in dict(rows.extra).items()},
    )


def doubled(mirror: Mirror) -> Callable[[Batch], Batch]:
    """Return a function from rows [B, (L)] to rows and their mirror images, [2B, (L)]."""

    def augment(rows: Batch) -> Batch:
        image = mirrored(mirror, rows)
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), rows, image)

    return augment


def asymmetry(mirror: Mirror) -> Penalty:
    """Return the penalty symmetry_coef |π(Mo) - M π(o)|² per row, for the mirror M.

    π(o) is the policy's choice, see `Mirror.choice`.

    Reference: Yu et al. 2018, https://arxiv.org/abs/1801.08093.
    """

    def penalty(forward: Unroll, rows: Batch, dist_params: Array, hp: Hyperparams) -> Array:
        image = mirrored(mirror, rows)
        out = forward(image.carry, image.obs, image.start, image.absent)
        choice = mirror.choice(out.dist_params)
        mirrored_choice = mirror.mirrored_choice(mirror.choice(dist_params))
        return hp.symmetry_coef * jnp.sum(jnp.square(choice - mirrored_choice), axis=-1)

    return penalty


def no_penalty(forward: Unroll, rows: Batch, dist_params: Array, hp: Hyperparams) -> float:
    """Return 0, for policies that need not be symmetric."""
    del forward, rows, dist_params, hp
    return 0.0


def make(config: Config, spec: EnvSpaces, dist: Distribution) -> Symmetry:
    """Return how the config uses the mirror: not at all, for data augmentation or for a penalty.

    Args:
        config: settings of the run.
        spec: spaces of the environments.
        dist: distribution over actions.

    Raises:
        ValueError: see `make_mirror`.
    """
    if config.ppo.symmetry == "none":
        return Symmetry(unchanged, no_penalty)
    mirror = make_mirror(config, spec.observation, spec.action, dist)
    if config.ppo.symmetry == "augment":
        return Symmetry(doubled(mirror), no_penalty, copies=2)
    return Symmetry(unchanged, asymmetry(mirror))
