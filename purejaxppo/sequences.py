"""What an update deals into minibatches: single transitions or, of recurrent networks, stretches.

Both kinds have the same functions, so that the learner need not know which one it uses. `unroll`
is (carry [N, ...], obs [T, N, ...], start [T, N]) -> (carry, distribution parameters [T, N, P],
critic's outputs [T, N, K]).
"""

from collections.abc import Callable

import jax

from purejaxppo.memory import Whole, Windows


class Transitions:
    """Every transition is a unit of its own; networks have no carry."""

    def outputs(self, unroll: Callable, carry, memory: Whole | Windows, kept, rows, start):
        """What a network says of a whole rollout.

        Args:
            unroll: see the module's docstring.
            carry: before the rollout, [N, ...].
            memory: how observations are kept.
            kept: what it keeps besides rows.
            rows: [T, N].
            start: bool [T, N].

        Returns:
            (carries before the units, carry after the rollout, parameters [T, N, P], outputs
            [T, N, K]).
        """

        def function(obs, start):
            return unroll((), obs, start)[1:]

        return ((), carry, *memory.over(function, kept, rows, start))

    def cut(self, rollout):
        """A tree of arrays [T, N, ...] as units [B, ...]."""
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rollout)

    def unroll(self, unroll: Callable, carry, obs, start):
        """(parameters [B, P], outputs [B, K]) of units' observations [B, ...]."""
        return unroll(carry, obs, start)[1:]


class Stretches:
    """Units are `length` steps of one environment; a gradient reaches as far back as its stretch.

    Truncated back-propagation through time, Williams & Peng 1990. The carry before a stretch is
    what the newest parameters make of all that was before it in the rollout.
    """

    def __init__(self, length: int) -> None:
        """Sizes only."""
        self.length = length

    def outputs(self, unroll: Callable, carry, memory: Whole | Windows, kept, rows, start):
        """As `Transitions.outputs`, stretch after stretch."""
        parts = jax.tree.map(lambda x: x.reshape((-1, self.length, *x.shape[1:])), (rows, start))

        def stretch(carry, part):
            rows, start = part
            after, *out = unroll(carry, memory.look(kept, rows), start)
            return after, (carry, *out)

        after, (carries, *outs) = jax.lax.scan(stretch, carry, parts)
        outs = [x.reshape((-1, *x.shape[2:])) for x in outs]
        carries = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), carries)
        return carries, after, *outs

    def cut(self, rollout):
        """A tree of arrays [T, N, ...] as units [B, L, ...], of which N are of one time."""

        def cut(x):
            stretches = x.reshape((-1, self.length, *x.shape[1:])).swapaxes(1, 2)
            return stretches.reshape((-1, self.length, *x.shape[2:]))

        return jax.tree.map(cut, rollout)

    def unroll(self, unroll: Callable, carry, obs, start):
        """(parameters [B, L, P], outputs [B, L, K]) of units' observations [B, L, ...]."""
        obs, start = jax.tree.map(lambda x: x.swapaxes(0, 1), (obs, start))
        return tuple(x.swapaxes(0, 1) for x in unroll(carry, obs, start)[1:])


def choose(recurrent: bool, length: int) -> Transitions | Stretches:
    """Units of `length` steps for recurrent networks, single transitions for others."""
    return Stretches(length) if recurrent else Transitions()
