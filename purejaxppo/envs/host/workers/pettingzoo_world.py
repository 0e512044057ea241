"""A PettingZoo parallel environment as one Gymnasium environment. Needs both packages.

Its observation holds the observations, rewards and ends of all agents (`Team.joint_observation`),
and its action holds all their actions. This module does not import JAX, because worker processes
import it.
"""

import copy
import pkgutil
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from pettingzoo import ParallelEnv

from purejaxppo.config.hints import nearest
from purejaxppo.config.references import LoadError, import_named, in_file
from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.host.workers.factory import checked_limit, one_line, unpickled
from purejaxppo.envs.host.workers.gym_spaces import (
    action_space,
    decoder,
    encoder,
    native,
    observation_space,
    sources,
)
from purejaxppo.envs.host.workers.masks import gymnasium_space, mask_in
from purejaxppo.envs.host.workers.returned import reset_result, to_bool, to_float
from purejaxppo.envs.host.workers.worker import MultiAgentGymEnv, ignoring_float_errors
from purejaxppo.envs.native import NativeComposite, NativeSpaces, form_of
from purejaxppo.envs.teams import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Team,
    allow_all_if_empty,
    joined_state_space,
    mask_space,
    split_mask_obs,
)
from purejaxppo.spaces import MASK, Box, Dict, Space, leaves


@dataclass(frozen=True)
class PettingZooSpec:
    """A PettingZoo environment by name, from which a worker creates its environments.

    Args:
        name: a module with a `parallel_env`, `module:function`, `file.py:function`, or an id of
            PettingZoo's registry, which has a slash.
        options: keyword arguments of the function.
        max_episode_steps: time limit; 0 keeps the environment's.
        mask: read the `action_mask` in the agents' infos.
        global_state: observe the global state.
        pickled: the environment, a class or a function, if `name` cannot be loaded.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int = 0
    mask: bool = False
    global_state: bool = False
    pickled: bytes = b""

    def __hash__(self) -> int:
        """Return the hash of the fields that are not mappings."""
        return hash((self.name, self.max_episode_steps, self.mask, self.pickled))

    def __call__(self, render_mode: str | None = None) -> "ParallelGymEnv":
        """Create one multi-agent environment."""
        options = copy.deepcopy(self.options) | (
            {"render_mode": render_mode} if render_mode else {}
        )
        try:
            env = self._builder()(**options)
        except ImportError as error:
            raise MakeError(
                f"pettingzoo/{self.name} needs a missing package: {one_line(error)}"
            ) from error
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise MakeError(f"env.options: pettingzoo/{self.name}: {one_line(error)}") from error
        if not isinstance(env, ParallelEnv):
            raise MakeError(
                f"env.name = pettingzoo/{self.name}: expected a pettingzoo.ParallelEnv, got "
                f"{type(env).__name__}."
            )
        return ParallelGymEnv(env, self)

    def _builder(self) -> Any:
        """Return the class or function that creates an environment."""
        if not self.pickled:
            return _builder(self.name)
        target = unpickled(self.pickled, f"pettingzoo/{self.name}")
        if not isinstance(target, ParallelEnv):
            return target

        def restored(**options: Any) -> Any:
            if options:
                raise MakeError(
                    f"env.options: {self.name} is an environment, which takes no arguments. "
                    f"Remove {', '.join(options)}, or pass a function that makes it."
                )
            return target

        return restored


def _builder(name: str) -> Any:
    """Return the class or function that a name refers to."""
    module_name, _, attribute = name.rpartition(":")
    if module_name.endswith(".py"):
        return in_file(module_name, attribute, "env.name", callables=True)
    field = f"env.name: pettingzoo/{name}"
    if "/" in name:
        return _registered(name, field)
    module = _module(module_name or name, field)
    attribute = attribute if module_name else "parallel_env"
    builder = getattr(module, attribute, None)
    if callable(builder):
        return builder
    if not module_name and hasattr(module, "env"):
        raise MakeError(
            f"{field} is turn-based (AEC). Use a parallel environment: a module with parallel_env."
        )
    close = nearest(attribute, [key for key in vars(module) if not key.startswith("_")])
    hint = f". Did you mean {close!r}?" if module_name and close else ""
    raise MakeError(f"{field}: {module.__name__} does not define {attribute!r}{hint}")


def _registered(name: str, field: str) -> Any:
    """Return a function that creates an environment of PettingZoo's registry (since 1.27)."""
    known_names = getattr(pettingzoo, "parallel_registry", {})
    if name not in known_names:
        close = nearest(name, known_names)
        raise MakeError(f"{field}: unknown id{f'. Did you mean {close!r}?' if close else ''}")

    def build(**options: Any) -> Any:
        try:
            return pettingzoo.make("parallel", name, **options)
        except Exception as error:
            if isinstance(error.__cause__, ImportError):
                raise ImportError(str(error)) from error
            raise

    return build


def _module(name: str, field: str) -> Any:
    """Import a module. For an unknown module of a package, the error names the nearest one."""
    try:
        return import_named(name, field)
    except LoadError as error:
        package, _, last = name.rpartition(".")
        missing = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == name
        if not (package and missing):
            raise
        known_names = [
            module.name for module in pkgutil.iter_modules(import_named(package, field).__path__)
        ]
        close = nearest(last, known_names)
        hint = f". Did you mean '{package}.{close}'?" if close else ""
        raise MakeError(f"{field}: {package} has no module {last!r}{hint}") from error


class ParallelGymEnv(MultiAgentGymEnv, gymnasium.Env[Any, Any]):
    """A PettingZoo environment of A agents with Gymnasium's interface.

    For an agent that has ended, the last observation is repeated and the reward is 0. The episode
    ends when all agents have ended.

    Args:
        env: the PettingZoo environment.
        spec: description of the environment.
    """

    def __init__(self, env: ParallelEnv, spec: PettingZooSpec) -> None:
        """Pad the agents' spaces to common ones.

        Raises:
            MakeError: the spaces cannot be padded to common ones.
        """
        self.env = env
        self.metadata = env.metadata
        self.name, self._mask = spec.name, spec.mask
        self.agents = list(env.possible_agents)
        if not self.agents:
            raise MakeError(f"pettingzoo/{self.name}: possible_agents is empty. List every agent.")
        self.max_episode_steps = self._limit(spec.max_episode_steps) or None
        spaces = [env.observation_space(agent) for agent in self.agents]
        self._obs_spaces = [observation_space(space) for space in spaces]
        obs_sources = [
            tuple(sources(space, f"{agent}: observation"))
            for agent, space in zip(self.agents, spaces, strict=True)
        ]
        self._encode = [encoder(*pair) for pair in zip(spaces, obs_sources, strict=True)]
        self.observation_ranges = [
            part.range for agent_sources in obs_sources for part in agent_sources if part.range
        ]
        """Ranges of the agents' first observations; see `resolution.precision_warning`."""
        self._action_spaces = [env.action_space(agent) for agent in self.agents]
        self._decode = [decoder(space) for space in self._action_spaces]
        try:
            team = Team.of(
                [*map(str, self.agents)],
                self._obs_spaces,
                [*map(action_space, self._action_spaces)],
                masked=self._mask,
                native=[*map(self._native, spaces, self._action_spaces)],
            )
            self._has_own_state = False
            if spec.global_state:
                team = replace(team, state=self._state_space(team))
        except ValueError as error:
            raise MakeError(f"pettingzoo/{self.name}: {error}") from error
        self.team = team
        self.observation_space = gymnasium_space(team.joint_observation)
        self.action_space = gymnasium_space(team.joint_action)

    def _native(self, observation: Any, action: Any) -> NativeSpaces:
        """Return an agent's form; with a mask from infos, {"obs": ..., "action_mask": ...}."""
        forms, mask = native(observation, action), mask_space(action_space(action))
        if not self._mask or mask is None:
            return forms
        parts = (("obs", forms.observation), (MASK, form_of(mask)))
        return forms._replace(observation=NativeComposite(parts))

    def _limit(self, requested: int) -> int:
        """Return the smaller of the requested and the environment's limit; 0 without a limit."""
        unwrapped = self.env.unwrapped
        limits = [
            checked_limit(getattr(unwrapped, name, None), f"pettingzoo/{self.name}: {name}")
            for name in ("max_cycles", "max_episode_steps")
        ]
        return min((limit for limit in (requested, *limits) if limit), default=0)

    def _state_space(self, team: Team) -> Box:
        """Return the space of the environment's global state, or else of all observations."""
        self.env.reset(seed=0)
        try:
            state = np.asarray(self.env.state())
        except (NotImplementedError, AttributeError) as error:
            if isinstance(error, AttributeError) and error.name != "state":
                raise  # an error in the environment's own state()
            return joined_state_space(team.joint_observation["obs"])
        self._has_own_state = True
        return Box((state.size,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with all agents."""
        obs, infos = reset_result(self.env.reset(seed=seed, options=options))
        absent = [agent for agent in self.agents if agent not in self.env.agents]
        if absent:
            raise MakeError(
                f"pettingzoo/{self.name}: {absent[0]} is not in agents after reset. Agents that "
                f"join later are not supported. Start every episode with all possible_agents."
            )
        self._elapsed = 0
        self._removed: set[Any] = set()  # agents that have ended and were removed
        self._alive = np.ones(len(self.agents), bool)
        self._last_obs = [self._read_obs(i, obs, infos, "reset") for i in range(len(self.agents))]
        nothing = np.zeros(len(self.agents), np.float32)
        return self._observation(nothing, nothing), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step with the actions of the agents that have not ended."""
        acting = np.flatnonzero(self._alive).tolist()
        actions = self._actions(action, acting)
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        self._elapsed += 1
        at_limit = 0 < (self.max_episode_steps or 0) <= self._elapsed
        reward, end = np.zeros(len(self.agents)), np.full(len(self.agents), ALIVE)
        for i in acting:
            agent = self.agents[i]
            self._last_obs[i] = self._read_obs(i, obs, infos, "step")
            reward[i] = to_float(self._entry(rewards, agent, "reward"), f"reward of {agent}")
            terminated = self._entry(terminations, agent, "termination")
            truncated = self._entry(truncations, agent, "truncation")
            if to_bool(terminated, f"termination of {agent}"):
                end[i] = TERMINATED
            elif to_bool(truncated, f"truncation of {agent}") or at_limit:
                end[i] = TRUNCATED
            elif agent not in self.env.agents:
                raise ValueError(
                    f"{agent} is not in agents any more, but was not terminated or truncated. "
                    f"Report its end in the step in which it leaves."
                )
        ended = [agent for agent, alive in zip(self.agents, self._alive, strict=True) if not alive]
        self._alive &= end == ALIVE
        if self._alive.any():
            self._check_agents(ended, terminations, truncations)
        all_ended, any_truncated = not self._alive.any(), bool((end == TRUNCATED).any())
        return (
            self._observation(reward, end),
            0.0,
            all_ended and not any_truncated,
            all_ended and any_truncated,
            infos or {},
        )

    @ignoring_float_errors
    def _actions(self, action: Any, acting: list[int]) -> dict[Any, Any]:
        """Return the actions of the agents that have not ended, in PettingZoo's form."""
        joint = self.team.split(action, np)
        return {self.agents[i]: self._decode[i](joint[i]) for i in acting}

    def _check_agents(
        self, ended: list[Any], terminations: dict[Any, Any], truncations: dict[Any, Any]
    ) -> None:
        """Check that no agent returns or joins while the episode continues.

        Args:
            ended: the agents that had ended before this step.
            terminations: the dict that the environment returned.
            truncations: the dict that the environment returned.

        Raises:
            MakeError: an agent acts after its end, or is not in `possible_agents`.
        """
        present = self.env.agents
        for agent in present:
            if agent not in self.agents:
                raise MakeError(
                    f"pettingzoo/{self.name}: {agent} is in agents, but not in possible_agents. "
                    f"List every agent in possible_agents."
                )
        for agent in ended:
            # Some environments keep ended agents in the list and report their end at every step.
            acts = not (terminations.get(agent, True) or truncations.get(agent, True))
            if agent in present and (acts or agent in self._removed):
                raise MakeError(
                    f"pettingzoo/{self.name}: {agent} is in agents again after it was terminated "
                    f"or truncated. Agents cannot return within an episode. Do not terminate or "
                    f"truncate {agent}, or end the episode of all agents."
                )
        self._removed |= {
            agent
            for agent, alive in zip(self.agents, self._alive, strict=True)
            if not alive and agent not in present
        }

    def _entry(self, parts: Any, agent: Any, name: str) -> Any:
        """Return an agent's entry in a result of `reset` or `step`.

        Raises:
            MakeError: the entry is missing.
        """
        try:
            return parts[agent]
        except (LookupError, TypeError):
            raise MakeError(
                f"pettingzoo/{self.name}: the environment returned no {name} for {agent}. Return a "
                f"dict with an entry for each agent that has not ended."
            ) from None

    def render(self) -> Any:
        """Return a frame from the environment's `render`."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    @ignoring_float_errors
    def _read_obs(
        self, i: int, obs: dict[Any, Any], infos: dict[Any, Any], when: str
    ) -> tuple[Any, Any]:
        """Return (observation, mask or None) of agent i."""
        agent = self.agents[i]
        raw_obs = self._entry(obs, agent, "observation")
        agent_obs, mask = split_mask_obs(self._encode[i](raw_obs), self._obs_spaces[i])
        mask = allow_all_if_empty(mask, np)
        if self._mask:
            label = f"pettingzoo/{self.name}: env.options.mask"
            when = f"{when} for {agent}"
            mask = mask_in((infos or {}).get(agent), self._action_spaces[i], label, when)
        return agent_obs, mask

    @ignoring_float_errors
    def _observation(self, reward: np.ndarray, end: np.ndarray) -> dict[str, Any]:
        """Return the joint observation, in the space `Team.joint_observation`."""
        joined = self.team.join([agent_obs for agent_obs, _ in self._last_obs], np)
        out = {"obs": joined, "reward": reward.astype(np.float32), "end": end.astype(np.uint8)}
        if self.team.mask is not None:
            out[MASK] = self.team.join_masks([mask for _, mask in self._last_obs], np)
        if self.team.state is not None:
            state = self.env.state() if self._has_own_state else joined
            out["state"] = np.asarray(state, np.float32).ravel()
            (size,) = self.team.state.shape
            if out["state"].size != size:
                raise MakeError(
                    f"pettingzoo/{self.name}: state() returned {out['state'].size} numbers instead "
                    f"of {size}. It must return an array of the same size at every step, also "
                    f"after the episode of an agent has ended."
                )
        return _in_shape(out, self.team.joint_observation)


def _in_shape(tree: Any, space: Space) -> Any:
    """Reshape arrays to the shapes of `space`, in which all agents' choices form one axis."""
    if isinstance(space, Dict):
        return {name: _in_shape(tree[name], part) for name, part in space.spaces}
    (leaf,) = leaves(space)
    return tree.reshape(leaf.shape)
