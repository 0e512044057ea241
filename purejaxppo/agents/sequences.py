"""Layout of an update's rows: single steps or, for recurrent networks, sequences of steps.

Both layouts have the same functions, so that the learner works with either one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.agents.obs_storage import ObsStorage
from purejaxppo.aliases import Array, Carry, Key, Obs, StoredObs, T
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import Outputs, Rollout, Unroll

PACKED = 2**16
"""Rows up to which a CPU shuffles by sorting numbers alone; 16 bits of 32 are random then."""


class RolloutOutputs(NamedTuple):
    """A network's outputs for a whole rollout."""

    carries: Carry  # [B, ...] before each unit
    carry: Carry  # [N, ...] after the rollout
    dist_params: Array  # [T, N, P]
    critic: Array  # [T, N, K]


class SingleSteps:
    """Every step is a unit of its own; networks have no carry."""

    def evaluate_rollout(
        self, unroll: Unroll, rollout: Rollout, storage: ObsStorage
    ) -> RolloutOutputs:
        """A network's outputs for a whole rollout.

        Args:
            unroll: the network.
            rollout: of T steps.
            storage: of its observations.
        """

        def function(obs: Obs, start: Array) -> tuple[Array, Array]:
            return unroll((), obs, start, None)[1:3]

        rows = rollout.transitions
        outputs = storage.map_rows(function, rollout.obs_buffer, rows.obs, rows.start)
        return RolloutOutputs((), rollout.carry, *outputs)

    def split(self, rows: T) -> T:
        """A tree of arrays [T, N, ...] as units [B, ...]."""
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)

    def evaluate_units(
        self, unroll: Unroll, carry: Carry, obs: Obs, start: Array, absent: Array | None
    ) -> Outputs:
        """A network's outputs for units' observations [B, ...]."""
        return unroll(carry, obs, start, absent)


class Sequences:
    """Units are `length` steps of one environment; a gradient reaches back to its unit's start.

    Truncated back-propagation through time, Williams & Peng 1990. The carry before a unit is
    computed with the newest parameters from all steps before it in the rollout.
    """

    def __init__(self, length: int) -> None:
        """Stores the length."""
        self.length = length

    def evaluate_rollout(
        self, unroll: Unroll, rollout: Rollout, storage: ObsStorage
    ) -> RolloutOutputs:
        """See `SingleSteps.evaluate_rollout`; one sequence after another."""
        given = rollout.transitions
        rows = given.obs, given.start, given.absent
        parts = jax.tree.map(lambda x: x.reshape((-1, self.length, *x.shape[1:])), rows)

        def sequence(
            carry: Carry, part: tuple[StoredObs, Array, Array | None]
        ) -> tuple[Carry, tuple[Carry, Array, Array]]:
            rows, start, absent = part
            out = unroll(carry, storage.read(rollout.obs_buffer, rows), start, absent)
            return out.carry, (carry, out.dist_params, out.critic)

        after, outs = jax.lax.scan(sequence, rollout.carry, parts)
        joined = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), outs)
        carries, dist_params, critic = joined
        return RolloutOutputs(carries, after, dist_params, critic)

    def split(self, rows: T) -> T:
        """A tree of arrays [T, N, ...] as units [B, L, ...], N for each interval of L steps."""

        def split(x: Array) -> Array:
            sequences = x.reshape((-1, self.length, *x.shape[1:])).swapaxes(1, 2)
            return sequences.reshape((-1, self.length, *x.shape[2:]))

        return jax.tree.map(split, rows)

    def evaluate_units(
        self, unroll: Unroll, carry: Carry, obs: Obs, start: Array, absent: Array | None
    ) -> Outputs:
        """A network's outputs for units' observations [B, L, ...]: arrays [B, L, ...]."""
        rows = jax.tree.map(lambda x: x.swapaxes(0, 1), (obs, start, absent))
        out = unroll(carry, *rows)
        units = jax.tree.map(lambda x: x.swapaxes(0, 1), out._replace(carry=()))
        return units._replace(carry=out.carry)


UnitLayout = SingleSteps | Sequences


def make(recurrent: bool, length: int) -> UnitLayout:
    """Units of `length` steps for recurrent networks, single steps for others."""
    return Sequences(length) if recurrent else SingleSteps()


def minibatch_indices(key: Key, config: PPOConfig, length: int, num_envs: int) -> Array:
    """Indices of a rollout's units, flattened from [T, N], by minibatch, int32 [M, B].

    By `shuffle`, single units or whole environments are shuffled.
    """
    m = config.num_minibatches
    if m == 1:
        return jnp.arange(length * num_envs)[None]
    if config.shuffle == "trajectories":
        envs = shuffled(key, num_envs).reshape(m, 1, num_envs // m)
        return (jnp.arange(length)[None, :, None] * num_envs + envs).reshape(m, -1)
    return shuffled(key, length * num_envs).reshape(m, -1)


def shuffled(key: Key, n: int) -> Array:
    """A random order of 0..n-1: one sort by random bits."""
    if platforms.is_accelerated() or n > PACKED:
        return jnp.argsort(jax.random.bits(key, (n,)))  # 32 bits: ties are very rare
    # Sorting numbers alone takes a CPU a quarter of the time: each has its index in its last bits.
    # Rows whose random bits are the same lie side by side in the order, so that at most the ends of
    # minibatches depend on how their indices are sorted: xor random bits, each of two as often.
    places = max(1, (n - 1).bit_length())
    bits = jax.random.bits(key, (n + 1,))
    mask = jnp.uint32(2**places - 1)
    low = (jnp.arange(n, dtype=jnp.uint32) ^ bits[n]) & mask
    ordered = jnp.sort((bits[:n] & ~mask) | low)
    return ((ordered ^ bits[n]) & mask).astype(jnp.int32)
