"""Units of minibatches: single steps or, for recurrent networks, sequences of steps.

Both layouts have the same methods.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.agents.obs_storage import ObsStorage
from purejaxppo.aliases import Array, Carry, Key, Obs, StoredObs, T
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import Outputs, Rollout, Unroll

MAX_PACKED = 2**16
"""Largest number of rows that a CPU shuffles with packed sort keys. Each key then has at least 16
random bits of 32."""


class RolloutOutputs(NamedTuple):
    """Outputs of a network for a whole rollout."""

    carries: Carry  # [B, ...] before each unit
    carry: Carry  # [N, ...] after the rollout
    dist_params: Array  # [T, N, P]
    critic: Array  # [T, N, K]


class SingleSteps:
    """Use every step as a unit, for networks without a carry."""

    def evaluate_rollout(
        self, unroll: Unroll, rollout: Rollout, storage: ObsStorage
    ) -> RolloutOutputs:
        """Return the outputs of a network for a whole rollout.

        Args:
            unroll: the network.
            rollout: rollout of T steps.
            storage: storage of its observations.
        """

        def function(obs: Obs, start: Array) -> tuple[Array, Array]:
            return unroll((), obs, start, None)[1:3]

        rows = rollout.transitions
        outputs = storage.map_rows(function, rollout.stored, rows.obs, rows.start)
        return RolloutOutputs((), rollout.carry, *outputs)

    def split(self, rows: T) -> T:
        """Reshape arrays [T, N, ...] to [B, ...], one entry per unit. A unit is a single step."""
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)

    def evaluate_units(
        self, unroll: Unroll, carry: Carry, obs: Obs, start: Array, absent: Array | None
    ) -> Outputs:
        """Return the outputs [B, ...] of a network for units.

        Args:
            unroll: the network.
            carry: (), since these networks have no carry.
            obs: observations [B, ...].
            start: True where an observation is the first of an episode, bool [B].
            absent: ignored, since these networks have no carry.
        """
        return unroll(carry, obs, start, absent)


class Sequences:
    """Use `length` steps of one environment as a unit. Gradients stop at the start of the unit.

    The carry before a unit is computed with the newest parameters from all previous steps of the
    rollout.

    Reference: truncated back-propagation through time, Williams & Peng 1990,
    https://doi.org/10.1162/neco.1990.2.4.490.
    """

    def __init__(self, length: int) -> None:
        """Store the length."""
        self.length = length

    def evaluate_rollout(
        self, unroll: Unroll, rollout: Rollout, storage: ObsStorage
    ) -> RolloutOutputs:
        """Return outputs, see `SingleSteps.evaluate_rollout`; one sequence after the other."""
        transitions = rollout.transitions
        rows = transitions.obs, transitions.start, transitions.absent
        intervals = jax.tree.map(lambda x: x.reshape((-1, self.length, *x.shape[1:])), rows)

        def sequence(
            carry: Carry, interval: tuple[StoredObs, Array, Array | None]
        ) -> tuple[Carry, tuple[Carry, Array, Array]]:
            rows, start, absent = interval
            out = unroll(carry, storage.read(rollout.stored, rows), start, absent)
            return out.carry, (carry, out.dist_params, out.critic)

        after, outs = jax.lax.scan(sequence, rollout.carry, intervals)
        joined = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), outs)
        carries, dist_params, critic = joined
        return RolloutOutputs(carries, after, dist_params, critic)

    def split(self, rows: T) -> T:
        """Reshape arrays [T, N, ...] to [B, L, ...], one entry per unit.

        A unit is a sequence of L steps. Each interval of L steps has N units.
        """

        def split(x: Array) -> Array:
            sequences = x.reshape((-1, self.length, *x.shape[1:])).swapaxes(1, 2)
            return sequences.reshape((-1, self.length, *x.shape[2:]))

        return jax.tree.map(split, rows)

    def evaluate_units(
        self, unroll: Unroll, carry: Carry, obs: Obs, start: Array, absent: Array | None
    ) -> Outputs:
        """Return the outputs [B, L, ...] of a network for units.

        Args:
            unroll: the network.
            carry: recurrent carry before each unit [B, ...].
            obs: observations [B, L, ...].
            start: True where an observation is the first of an episode, bool [B, L].
            absent: True where the carry does not change, bool [B, L]; None: nowhere.
        """
        rows = jax.tree.map(lambda x: x.swapaxes(0, 1), (obs, start, absent))
        out = unroll(carry, *rows)
        units = jax.tree.map(lambda x: x.swapaxes(0, 1), out._replace(carry=()))
        return units._replace(carry=out.carry)


UnitLayout = SingleSteps | Sequences


def make(recurrent: bool, length: int) -> UnitLayout:
    """Return sequences of `length` steps for recurrent networks, single steps for others."""
    return Sequences(length) if recurrent else SingleSteps()


def minibatch_indices(key: Key, config: PPOConfig, length: int, num_envs: int) -> Array:
    """Return the indices of a rollout's units by minibatch, int32 [M, B].

    The indices are those of a flattened array [T, N]. `ppo.shuffle` selects whether single units or
    whole environments are shuffled.

    Args:
        key: random key; the caller must not use it again.
        config: settings of the algorithm.
        length: number of units per environment, T.
        num_envs: number of environments, N.
    """
    m = config.num_minibatches
    if m == 1:
        return jnp.arange(length * num_envs)[None]
    if config.shuffle == "trajectories":
        envs = shuffled(key, num_envs).reshape(m, 1, num_envs // m)
        return (jnp.arange(length)[None, :, None] * num_envs + envs).reshape(m, -1)
    return shuffled(key, length * num_envs).reshape(m, -1)


def valid_minibatches(key: Key, config: PPOConfig, valid: Array) -> Array:
    """Return minibatches of the fraction `ppo.epoch_fraction` of the units, int32 [M, K].

    The valid units come first, in random order and divided evenly over the M minibatches. If the
    fraction is smaller than the share of valid units, it is a random sample of the valid units.

    Args:
        key: random key; the caller must not use it again.
        config: settings of the algorithm.
        valid: bool [T x N, (L)]. A sequence is valid if one of its steps is.
    """
    order = shuffled(key, len(valid))
    has_valid = valid.reshape(len(valid), -1).any(axis=1)[order]
    size = math.ceil(config.epoch_fraction * len(valid) / config.num_minibatches)
    first = order[jnp.argsort(~has_valid)][: size * config.num_minibatches]
    return first.reshape(size, config.num_minibatches).T


def shuffled(key: Key, n: int) -> Array:
    """Return a random order of 0..n-1, int32 [n]."""
    if platforms.is_accelerated() or n > MAX_PACKED:
        return jnp.argsort(jax.random.bits(key, (n,)))  # 32 bits: ties are very rare
    # A CPU sorts plain numbers four times as fast, so each number contains its index in its last
    # bits. Numbers with equal random bits are next to each other in the order. At most the ends of
    # minibatches then depend on their indices, and these are xored with random bits.
    num_bits = max(1, (n - 1).bit_length())
    bits = jax.random.bits(key, (n + 1,))
    mask = jnp.uint32(2**num_bits - 1)
    low = (jnp.arange(n, dtype=jnp.uint32) ^ bits[n]) & mask
    ordered = jnp.sort((bits[:n] & ~mask) | low)
    return ((ordered ^ bits[n]) & mask).astype(jnp.int32)
