"""Collecting experience from two halves of environments in turns.

While one half steps, the policy acts for the other:

    policy    act B      act A      act B      act A      ...
    half A    step ........         step ........         ...
    half B               step ........         step ...   ...

The policy always acts for all N rows, and its actions for one half are used. A row's numbers do not
depend on the other rows, but they do depend, in the last bit, on the number of rows. So the
trajectories are those of `rollout.collect`, at the cost of a policy that acts twice per step.
"""

import jax
import jax.numpy as jnp

from purejaxppo import key_scan
from purejaxppo.agents import decisions
from purejaxppo.agents.obs_storage import ObsStorage
from purejaxppo.aliases import Array, Carry, EnvState, Key, Obs, Stored, Tree
from purejaxppo.envs.host.split import HalvedEnv, join
from purejaxppo.rollout import FULL_OBS, record
from purejaxppo.types import Act, PolicyStep, Rollout, RolloutState, Row

Carried = tuple[RolloutState, Stored, PolicyStep]
"""(state, stored observations, actions under way of the first half)."""


def collect(
    env: HalvedEnv,
    act: Act,
    state: RolloutState,
    key: Key,
    length: int,
    storage: ObsStorage = FULL_OBS,
) -> Rollout:
    """Steps N environments `length` times; arguments and result are those of `rollout.collect`."""
    keys = jax.random.split(key, length)
    drawn, act_on = key_scan.ahead(act, keys, state.carry, state.obs, state.start)

    def act_for(
        which: int, own: Tree, env_state: EnvState, carry: Carry, obs: Obs, start: Array
    ) -> tuple[EnvState, PolicyStep]:
        """Sends one half its actions: -> (env_state, PolicyStep [N/2])."""
        choice = act_on(own, carry, obs, start)
        env_state = env.send(env_state, which, choice.env_action)
        return env_state, env.rows(which, choice._replace(env_action=()))

    def step(carried: Carried, draws: tuple[Tree, Tree | None]) -> tuple[Carried, Row]:
        """One step of both halves: the first half's actions are sent before it, its next within."""
        state, stored, first = carried
        own, next_own = draws
        stored, obs = storage.append(stored, state.obs, state.start, state.env)
        env_state, second = act_for(1, own, state.env, state.carry, state.obs, state.start)
        env_state, first_out = env.recv(env_state, 0)
        choice = join(first, second)
        if next_own is not None:
            next_obs = join(first_out.obs, env.rows(1, state.obs))
            mine = env.rows(0, state.absent)
            begun = decisions.begins(first_out.valid, first_out.diverged, mine, first_out.at_once)
            start = join(begun, env.rows(1, state.start))
            carry = decisions.hold(state.absent, state.carry, choice.carry)
            env_state, first = act_for(0, next_own, env_state, carry, next_obs, start)
        env_state, second_out = env.recv(env_state, 1)
        state, row = record(state, obs, choice, env_state, join(first_out, second_out))
        return (state, stored, first), row

    stored = storage.init(state.obs, length, state.env)
    env_state, first = act_for(0, at(drawn, 0), state.env, state.carry, state.obs, state.start)
    begun = (state.replace(env=env_state), stored, first)
    between = at(drawn, slice(-1)), at(drawn, slice(1, None))
    carried, rows = jax.lax.scan(step, begun, between, length=length - 1)
    (end, stored, _), last = step(carried, (at(drawn, -1), None))
    transitions, episodes = jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), rows, last)
    episodes = jax.tree.map(lambda x: jnp.sum(x, axis=0), episodes)
    return decisions.join(state, Rollout(transitions, stored, state.carry, end, episodes))


def at(tree: Tree, index: int | slice) -> Tree:
    """The steps of an index."""
    return jax.tree.map(lambda x: x[index], tree)
