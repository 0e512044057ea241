"""Trained agents: parameters, config and actions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents import normalize
from purejaxppo.agents.policy import Policy
from purejaxppo.aliases import EnvAction, Key, Obs
from purejaxppo.config.files import with_env_change
from purejaxppo.config.plain import user_path, whole
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.outside import SpaceConverter
from purejaxppo.runs import conditions
from purejaxppo.types import AgentAct, AgentState, LearnedState


@dataclass(eq=False, repr=False)
class Agent:
    """A trained policy, as `Run.best`, `Agent.load` and `restore` return it.

    `Agent(config, result.agent)` is the agent of a `TrainResult`. An agent can be pickled and
    copied; the recurrent state of `act` is not included.
    """

    config: Config
    state: AgentState
    """Parameters and statistics; a `LearnedState` if the statistics of values are known, too."""
    env_steps: int = 0
    """Number of environment steps that it was trained for; of several agents, the largest."""
    members: tuple[Config, ...] = ()
    """Config of each agent, if several were trained together. Every array of the state then has a
    leading axis of agents. `member` selects one agent."""
    member_steps: tuple[int, ...] = ()
    """Number of environment steps that each agent was trained for."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment that differ from those of the run, by dotted name."""
    _trained: Config | None = field(default=None, init=False, repr=False)
    """Config of the run; None if it is `config`, or unknown."""
    _acting: "Acting | None" = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        """Return the task and the steps, without parameters."""
        of = f"{len(self.members)} agents of " if self.members else ""
        return f"<{of}{self.config.env.name or 'no task'} after {self.trained_for} steps>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle, with NumPy arrays and without compiled functions."""
        return {**self.__dict__, "state": jax.device_get(self.state), "_acting": None}

    def save(self, path: str | Path) -> None:
        """Write the config, parameters and statistics to one file.

            ppo.Agent(config, result.seed(0).agent).save("cartpole.agent")

        Custom code is saved by reference. An existing file is replaced.

        Args:
            path: path of the file, with any suffix.

        Raises:
            ValueError: the folder does not exist, or the state does not fit the config.
        """
        from purejaxppo.runs import agent_file

        agent_file.save(self, user_path(path))

    @staticmethod
    def load(path: str | Path, env: Any = None, **overrides: Any) -> "Agent":
        """Load an agent from a file that `save` wrote.

        The config in the file can name custom code, which is imported.

        Args:
            path: path of the file.
            env: the environment, if it was passed as an object that the file cannot restore.
            overrides: values of other config fields.

        Raises:
            ValueError: the file does not exist, is corrupt, or does not fit `env`.
        """
        from purejaxppo.runs import agent_file

        return agent_file.load(user_path(path), with_env_change(overrides, env))

    @property
    def trained_for(self) -> str:
        """Environment steps of training, as text; of several agents, the smallest and largest."""
        low, high = (limit(self.member_steps or (self.env_steps,)) for limit in (min, max))
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    def member(self, index: int, argument: str = "member") -> "Agent":
        """Return one of the agents that were trained together.

        Args:
            index: index of the agent, from 0.
            argument: name of the index in messages.

        Raises:
            ValueError: the index is out of range.
        """
        number = whole(index)
        if number is None or not 0 <= number < max(len(self.members), 1):
            known = f"0 to {len(self.members) - 1}" if self.members else "0, the only agent"
            raise ValueError(f"{argument} = {index!r}: unknown agent. Use {known}.")
        if not self.members:
            return self
        state = jax.tree.map(lambda x: x[number], self.state)
        steps = self.member_steps[number]
        agent = Agent(self.members[number], state, steps, conditions=self.conditions)
        agent._trained = self._trained
        return agent

    def with_env(self, env: Any = None, **changes: Any) -> "Agent":
        """Return the agent in another environment, for evaluations and videos.

            agent.with_env({"max_episode_steps": 500}, **{"env.options.length": 2.0})

        Args:
            env: an environment, or a mapping of settings of the section env. `options` and
                `randomize` replace those of the run; a dotted name changes one entry.
            changes: settings of the section env by dotted name.

        Raises:
            ValueError: a setting is invalid, or changes the form of observations or actions.
        """
        new = with_env_change(changes, env)
        if not new:
            return self
        config = conditions.changed(self.config, new)
        members = tuple(conditions.changed(member, new) for member in self.members)
        differing = conditions.differences(self._trained or self.config, config)
        if self._trained is None:  # as in an agent of another version
            differing = {**self.conditions, **differing}
        agent = Agent(config, self.state, self.env_steps, members, self.member_steps, differing)
        agent._trained = self._trained or (None if self.conditions else self.config)
        conditions.check_spaces(differing, self.policy, agent.policy)
        return agent

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
                f"{operation}: {run} trained {len(self.members)} agents (seeds or settings of a "
                f"sweep). Select one with {select}, where i is 0 to {len(self.members) - 1}."
            )
        statistics = getattr(self.state, "obs_stats", None)
        if np.ndim(getattr(statistics, "count", 0)):
            raise ValueError(
                f"{operation}: the agent's state has several seeds, as after jax.vmap. Select a "
                f"seed with result.seed(i)."
            )

    def act(
        self, obs: Obs, *, start: bool | np.ndarray | None = None, deterministic: bool | None = None
    ) -> Any:
        """Choose an action for one observation or a batch of observations, as NumPy arrays.

        Observations and actions have the structure, dtypes and shapes of the environment's spaces.
        A recurrent policy keeps its recurrent state from call to call. Call `reset` at the start of
        an episode.

        Args:
            obs: an observation as the environment returns it, or a batch of N observations with a
                leading axis on every array. Keys of a dict that only the critic sees are not
                needed. In a multi-agent environment: a dict by agent or a tuple of all agents, for
                which the actions are a dict or a tuple too; or rows, as the policy reads them.
            start: True where an observation is the first of an episode, bool or [N]. None: True
                in the first call and the first call after `reset`, otherwise False.
            deterministic: True for the distribution's mode, False for samples, None for the
                setting of the run's evaluations.

        Returns:
            The action, or the batch of actions with a leading axis of N.

        Raises:
            ValueError: the observation does not fit its space or is not finite; the batch size
                changed and the policy is recurrent; or this object has several agents.
        """
        self._acting = self._acting or Acting(self)
        return self._acting.act(obs, start, deterministic)

    def reset(self) -> None:
        """Start a new episode: the next call of `act` starts with the initial recurrent state."""
        if self._acting:
            self._acting.reset()

    @property
    def policy(self) -> Policy:
        """Policy whose parameters are `state`."""
        spec = registry.make(self.config.env, 1, evaluation=True).spec
        return Policy(self.config, spec)

    def controller(self, *, deterministic: bool = True) -> Callable[[Key, Obs], EnvAction]:
        """Return a function (key, obs [N, ...]) -> action [N, ...].

        Observations and actions have the form that `act` describes. JAX can trace the function. It
        then does not check values, multi-agent tasks take rows, and 64-bit numbers become 32-bit.

        Raises:
            ValueError: the policy is recurrent, or these are several agents.
        """
        self.check_single("controller", "this run", "agent.member(i)")
        env = registry.make(self.config.env, 1, evaluation=True)
        env.close()
        policy, state = Policy(self.config, env.spec), jax.device_get(self.state)
        if policy.recurrent:
            raise ValueError(
                f"network.rnn = {self.config.network.rnn}: controller does not support recurrent "
                f"policies. Use Agent.act, or Agent.policy.act with a recurrent state."
            )
        act = act_function(self.config, policy, deterministic)
        converter = SpaceConverter(env.spec, policy.unused_keys)

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


class HasBest(Protocol):
    """An object with a best agent, such as a `Run`."""

    @property
    def best(self) -> Agent:
        """The best agent."""
        ...


def agent_of(source: Agent | HasBest) -> Agent:
    """Return an agent, or the best agent of a run.

    Raises:
        ValueError: `source` is a path, or another object.
    """
    if isinstance(source, str | Path):
        raise ValueError(
            f"{str(source)!r} is a path. Pass purejaxppo.load(path) for a run folder, or "
            f"Agent.load(path) for a file."
        )
    agent = source if isinstance(source, Agent) else getattr(source, "best", None)
    if not isinstance(agent, Agent):
        is_short = source is None or isinstance(source, int | float)
        text = repr(source) if is_short else f"a value of type {type(source).__name__}"
        raise ValueError(
            f"{text} is neither a Run nor an Agent. Use purejaxppo.load(run_dir), "
            f"Agent.load(path), or the best of a sweep."
        )
    return agent


class Acting:
    """A policy with its recurrent state, for actions outside of a rollout."""

    def __init__(self, agent: Agent) -> None:
        """Make the policy. Nothing is compiled before the first action.

        Raises:
            ValueError: `agent` holds several agents.
        """
        agent.check_single("act", "this run", "agent.member(i)")
        env = registry.make(agent.config.env, 1, evaluation=True)
        self._to_simulator = env.to_simulator
        self._policy = Policy(agent.config, env.spec)
        self._converter = SpaceConverter(env.spec, self._policy.unused_keys)
        env.close()
        self._config, self._state = agent.config, jax.device_get(agent.state)
        self._key, self._calls = jax.random.key(agent.config.seed), 0
        self._steps: dict[bool | None, Callable] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the recurrent state."""
        self._carry: Any = None
        self._present: np.ndarray | None = None

    def act(self, obs: Obs, start: Any, deterministic: bool | None) -> Any:
        """Choose actions for one observation or a batch; see `Agent.act`."""
        rows = self._converter.rows(obs)
        size, before = len(rows.present), self._present
        if not size:
            raise ValueError("obs: the batch is empty. Pass at least one observation.")
        if self._policy.recurrent and before is not None and len(before) != size:
            raise ValueError(
                f"obs: a batch of {size} observations follows one of {len(before)}. Call "
                f"agent.reset() first."
            )
        if before is None or len(before) != size:
            self._carry, before = self._policy.network.initial_carry((size,)), np.zeros(size, bool)
        # The episode of an absent agent starts when the agent appears.
        start_array = np.asarray(~before if start is None else start)
        if start_array.dtype.kind not in "biuf":
            raise ValueError(f"start = {start!r}: must be True, False or an array of these.")
        starts = start_array.astype(bool)
        if starts.shape not in ((), (size,)):
            raise ValueError(f"start has shape {list(starts.shape)}. It must be [] or [{size}].")
        starts = np.broadcast_to(starts, (size,))
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
    config: Config, policy: Policy, deterministic: bool | None, *, grouped: bool = False
) -> AgentAct:
    """Return the policy's function for actions.

    Args:
        config: config whose `eval.stochastic` is used if `deterministic` is None.
        policy: the agent's policy.
        deterministic: True for the distribution's mode, False for samples.
        grouped: if True, the function takes one key per group of rows instead of one key.

    Raises:
        ValueError: `deterministic` is neither a bool nor None.
    """
    if not isinstance(deterministic, bool | np.bool_ | None):
        raise ValueError(f"deterministic = {deterministic!r}: must be True, False or None.")
    if deterministic is None:
        deterministic = not config.eval.stochastic
    if deterministic:
        return policy.act_deterministically
    return policy.act_in_groups if grouped else policy.act


def abstract_agents(config: Config, size: int) -> LearnedState:
    """Return the shapes of the parameters and statistics of `size` agents."""
    policy = Agent(config, AgentState({}, None)).policy  # type: ignore[arg-type]

    def init(key: Key) -> LearnedState:
        agent = policy.init(key)
        reward_stats = normalize.init_stats(jnp.zeros(()))
        value_stats = normalize.init_value_stats()
        return LearnedState(agent.params, agent.obs_stats, reward_stats, value_stats)

    keys = jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), size))
    return jax.eval_shape(jax.vmap(init), keys)
