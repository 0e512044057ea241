"""A trained agent: restored from a run, evaluated, and asked for actions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.policy import Policy
from purejaxppo.aliases import EnvAction, Key, Obs
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.outside import SpaceConverter
from purejaxppo.types import AgentAct, AgentState


@dataclass(eq=False, repr=False)
class Agent:
    """A trained policy: what `restore` returns and `evaluate` takes."""

    config: Config
    state: AgentState
    env_steps: int = 0
    """Environment steps of its training."""
    members: tuple[Config, ...] = ()
    """Configs of the agents, if several were trained side by side; every array of the state then
    has a leading axis of agents. `member` selects one."""
    member_steps: tuple[int, ...] = ()
    """Environment steps of each one's training."""
    _acting: "Acting | None" = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        """Its task and steps, without parameters."""
        of = f"{len(self.members)} agents of " if self.members else ""
        return f"<{of}{self.config.env.name or 'no task'} after {self.env_steps:,} steps>"

    def member(self, index: int) -> "Agent":
        """One of the agents that trained side by side.

        Raises:
            ValueError: there is no such agent.
        """
        if not 0 <= index < max(len(self.members), 1):
            known = f"0 to {len(self.members) - 1}" if self.members else "0, the only agent"
            raise ValueError(f"member = {index}: unknown agent. Use {known}.")
        if not self.members:
            return self
        state = jax.tree.map(lambda x: x[index], self.state)
        return Agent(self.members[index], state, self.member_steps[index])

    def check_single(self, operation: str, run: str, select: str = "--member i") -> None:
        """Check that this is one agent.

        Args:
            operation: name of the operation that needs one agent, for the message.
            run: name of the agents' run, for the message.
            select: the way to select agent i, for the message.

        Raises:
            ValueError: these are several agents.
        """
        if self.members:
            raise ValueError(
                f"{operation}: {run} has {len(self.members)} agents. Select one with {select}, "
                f"where i is 0 to {len(self.members) - 1}."
            )

    def act(
        self, obs: Obs, *, start: bool | np.ndarray | None = None, deterministic: bool | None = None
    ) -> Any:
        """Chooses an action for one observation, or for a batch of them; numpy in, numpy out.

        Observations and actions are the environment's own, with its tuples, dtypes, shapes and
        smallest choices. A recurrent policy keeps its memory from call to call; `reset` begins a
        new episode.

        Args:
            obs: as the environment returns it, or N of them, with a leading axis on every array.
                Of several agents: a dict by agent or a tuple of all, which returns a dict or a
                tuple of actions; or rows, as the policy reads them.
            start: True where an observation is the first of an episode, bool or [N]; None: all are
                on the first call and after `reset`, and none on others.
            deterministic: the distribution's mode, or samples; None: as the run's evaluations.

        Raises:
            ValueError: the observation does not fit its space or is not finite; the batch has
                another size than before, with a memory; or this object has several agents.
        """
        self._acting = self._acting or Acting(self)
        return self._acting.act(obs, start, deterministic)

    def reset(self) -> None:
        """Begins a new episode: the next call of `act` starts with an empty memory."""
        if self._acting:
            self._acting.reset()

    @property
    def policy(self) -> Policy:
        """The policy whose parameters are `state`."""
        spec = registry.make(self.config.env, 1, evaluation=True).spec
        return Policy(self.config, spec)

    def controller(self, *, deterministic: bool = True) -> Callable[[Key, Obs], EnvAction]:
        """Return a function (key, obs [N, ...]) -> action [N, ...] in the environment's own form.

        See `act`. The function can be traced: then values are not checked, tasks of several agents
        take rows, and 64-bit numbers become 32-bit.

        Raises:
            ValueError: the policy has a memory.
        """
        env = registry.make(self.config.env, 1, evaluation=True)
        env.close()
        policy, state = Policy(self.config, env.spec), jax.device_get(self.state)
        if policy.recurrent:
            raise ValueError(
                f"network.rnn = {self.config.network.rnn}: controller does not support recurrent "
                f"policies. Use Agent.act, or Agent.policy.act with a carry."
            )
        act = act_function(self.config, policy, deterministic)
        converter = SpaceConverter(env.spec)

        def step(key: Key, rows: Obs) -> EnvAction:
            n = jax.tree.leaves(rows)[0].shape[0]
            carry = policy.network.initial_carry((n,))
            choice = act(state, key, carry, rows, jnp.zeros(n, bool))
            return env.to_simulator(choice.env_action, rows)

        compiled = jax.jit(step)

        def control(key: Key, obs: Obs) -> EnvAction:
            if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((key, obs))):
                return converter.decode(step(key, converter.encode(obs)))
            rows = converter.rows(obs)
            return rows.to_simulator(jax.device_get(compiled(key, rows.obs)))

        return control


class Acting:
    """A policy that acts outside of a simulator, with its memory."""

    def __init__(self, agent: Agent) -> None:
        """Makes the policy; nothing is compiled before the first action.

        Raises:
            ValueError: this is several agents.
        """
        agent.check_single("act", "this run", "agent.member(i)")
        env = registry.make(agent.config.env, 1, evaluation=True)
        self._to_simulator = env.to_simulator
        self._converter = SpaceConverter(env.spec)
        self._policy = Policy(agent.config, env.spec)
        env.close()
        self._config, self._state = agent.config, jax.device_get(agent.state)
        self._key, self._calls = jax.random.key(agent.config.seed), 0
        self._steps: dict[bool | None, Callable] = {}
        self.reset()

    def reset(self) -> None:
        """Empties the memory."""
        self._carry: Any = None
        self._present: np.ndarray | None = None

    def act(self, obs: Obs, start: Any, deterministic: bool | None) -> Any:
        """Actions for one observation or a batch; see `Agent.act`."""
        rows = self._converter.rows(obs)
        size, before = len(rows.present), self._present
        if self._policy.recurrent and before is not None and len(before) != size:
            raise ValueError(
                f"obs: a batch of {size} observations follows one of {len(before)}. Call "
                f"agent.reset() first."
            )
        if before is None or len(before) != size:
            self._carry, before = self._policy.network.initial_carry((size,)), np.zeros(size, bool)
        # The episode of an agent that was not there begins when it returns.
        starts = np.broadcast_to(np.asarray(~before if start is None else start, bool), (size,))
        self._present = rows.present
        if deterministic not in self._steps:
            self._steps[deterministic] = self._make_step(deterministic)
        key, self._calls = jax.random.fold_in(self._key, self._calls), self._calls + 1
        step = self._steps[deterministic]
        self._carry, action = step(self._state, key, self._carry, rows.obs, starts)
        return rows.to_simulator(jax.device_get(action))

    def _make_step(self, deterministic: bool | None) -> Callable:
        act = act_function(self._config, self._policy, deterministic)

        def step(state: AgentState, key: Key, carry: Any, obs: Obs, start: Any) -> tuple[Any, Any]:
            choice = act(state, key, carry, obs, start)
            return choice.carry, self._to_simulator(choice.env_action, obs)

        return jax.jit(step)


def act_function(
    config: Config, policy: Policy, deterministic: bool | None, *, apart: bool = False
) -> AgentAct:
    """The policy's way to act: its mode, samples of it, or for None as the config says.

    `apart`: it takes a key for each of some groups of rows, not one for all.
    """
    if deterministic is None:
        deterministic = not config.eval.stochastic
    if deterministic:
        return policy.act_deterministically
    return policy.act_in_groups if apart else policy.act


def abstract_agents(config: Config, size: int) -> AgentState:
    """The shapes of `size` agents' parameters and statistics."""
    agent = Agent(config, AgentState({}, None))  # type: ignore[arg-type]
    keys = jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), size))
    return jax.eval_shape(jax.vmap(agent.policy.init), keys)
