"""Convert observations and actions for policies that act in a simulator outside of this library."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.native import (
    NativeComposite,
    NativeSpace,
    NativeSpaces,
    decoder,
    encode,
    form_of,
    read,
    space_of,
)
from purejaxppo.envs.teams import Team, allow_all_if_empty, split_mask_obs
from purejaxppo.envs.wrappers import shaped
from purejaxppo.spaces import MASK, Space, example


class PolicyRows(NamedTuple):
    """Observations in the form of a policy, and a function that converts its actions back."""

    obs: Any  # [N, ...]
    to_simulator: Callable[[Any], Any]  # actions of the policy [N, ...] -> those of the simulator
    present: np.ndarray  # [N] bool: False for agents without an observation


class SpaceConverter:
    """Convert between the observations and actions of a simulator and those of a policy.

    Args:
        spec: spec of the environment.
        unused: keys of a dict observation that do not affect actions. They are not read, and the
            policy gets zeros.
    """

    def __init__(self, spec: EnvSpec, unused: Collection[str] = ()) -> None:
        """Set up the conversions."""
        self.team = spec.team
        native = _row_native(spec.team) if spec.team else spec.native
        form: NativeSpace = native.observation if native else form_of(spec.observation)
        self._unused: dict[str, Space] = {}
        if isinstance(form, NativeComposite):
            self._unused = {
                str(key): space_of(part)
                for key, part in form.parts
                if str(key) in unused and not (self.team and key == "agent")
            }
            parts = tuple(pair for pair in form.parts if str(pair[0]) not in self._unused)
            form = replace(form, parts=parts)
        self.form = form
        self.action = native.action if native else None

    def rows(self, obs: Any) -> PolicyRows:
        """Check and convert observations: one, a batch, or one of each agent.

        Raises:
            ValueError: an observation is outside of its space or not finite.
        """
        if self.team and not self._are_rows(self.team, obs):
            if self.team.state is not None and "state" not in self._unused:
                raise ValueError(
                    f"env.options.global_state = true, and the policy reads the state: "
                    f"observations by agent are not supported. Pass rows: a dict with "
                    f"{', '.join(_names(self.team))}."
                )
            by_agent = _agent_rows(self.team, obs)
            return by_agent._replace(obs=self._with_unused(by_agent.obs))
        rows, single = read(self.form, obs)
        rows = self._with_unused(rows)
        size = len(jax.tree.leaves(rows)[0])

        def to_simulator(action: Any) -> Any:
            if self.team:
                return _agent_actions(self.team, action, rows["agent"], single)
            decoded = action if self.action is None else decoder(self.action)(action)
            return _row(decoded, 0) if single else decoded

        return PolicyRows(rows, to_simulator, np.ones(size, bool))

    def _are_rows(self, team: Team, obs: Any) -> bool:
        """Return True for rows, and False for observations by agent."""
        names = set(_names(team))
        return isinstance(obs, Mapping) and names - {*self._unused} <= {*obs} <= names

    def _with_unused(self, rows: Any) -> Any:
        """Add zeros for the unused keys to observations [N, ...]."""
        if not self._unused:
            return rows
        size = jax.tree.leaves(rows)[0].shape[:1]
        return {**rows, **{key: example(space, size) for key, space in self._unused.items()}}

    def encode(self, obs: Any) -> Any:
        """Convert traced observations [N, ...] to the arrays of the policy."""
        return self._with_unused(encode(self.form, obs, jnp))

    def decode(self, action: Any) -> Any:
        """Convert traced actions [N, ...] to those of the simulator; dtypes do not change."""
        if self.action is None:
            return action
        flat = self.team is not None
        return decoder(self.action, jnp)(shaped(action, space_of(self.action)) if flat else action)


def _row_native(team: Team) -> NativeSpaces | None:
    """Return the native spaces of a row; None if those of the agents differ."""
    first, *_ = team.native
    if any(native != first for native in team.native):
        return None
    obs = first.observation
    if isinstance(obs, NativeComposite) and MASK in dict(obs.parts):
        unmasked = tuple(pair for pair in obs.parts if pair[0] != MASK)
        obs = unmasked[0][1] if len(unmasked) == 1 else NativeComposite(unmasked)
    parts = [(name, obs if name == "obs" else form_of(part)) for name, part in team.row.spaces]
    return NativeSpaces(NativeComposite(tuple(parts)), first.action)


def _row(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def _agent_actions(team: Team, action: Any, agents: np.ndarray, single: bool) -> Any:
    """Return the actions of rows; a list if the spaces of their agents differ."""
    actions = [team.to_agent_action(_row(action, i), int(agent)) for i, agent in enumerate(agents)]
    if single:
        return actions[0]
    spaces = {(team.actions[i], team.native[i].action) for i in agents.tolist()}
    return jax.tree.map(lambda *x: np.stack(x), *actions) if len(spaces) == 1 else actions


def _agent_rows(team: Team, obs: Any) -> PolicyRows:
    """Convert one observation per agent: a dict of the present agents, or a list of all.

    The rows do not have the global state.

    Raises:
        ValueError: an agent is unknown, or an observation is outside of its space.
    """
    if isinstance(obs, tuple | list):
        keys: list[Any] = list(range(team.size))
        named = dict(enumerate(obs))
        places = {i: i for i in named} if len(obs) == team.size else {}
    elif isinstance(obs, Mapping):
        named, keys = dict(obs), list(obs)
        places = {key: team.agents.index(str(key)) for key in keys if str(key) in team.agents}
    else:
        named, keys, places = {}, [], {}
    if not places or len(places) < len(named):
        raise ValueError(
            f"observations: the agents are unknown or missing. Pass a dict by agent, with "
            f"{', '.join(team.agents)}, or rows: a dict with {', '.join(_names(team))}."
        )
    observations = [example(space) for space in team.observations]
    masks: list[Any] = [None] * team.size
    for key, i in places.items():
        form = team.native[i].observation
        try:
            encoded, single = read(form, named[key])
        except ValueError as error:
            raise ValueError(f"agent {key}: {error}") from None
        if not single:
            raise ValueError(
                f"agent {key}: batches are not supported for several agents. Pass one observation "
                f"per agent."
            )
        observations[i], mask = split_mask_obs(_row(encoded, 0), space_of(form))
        masks[i] = allow_all_if_empty(mask, np)
    agents = np.arange(team.size, dtype=np.int32)
    rows: dict[str, Any] = {"agent": agents, "obs": team.join(observations, np)}
    if team.mask is not None:
        rows[MASK] = team.join_masks(masks, np)
    present = np.isin(agents, list(places.values()))

    def to_simulator(action: Any) -> Any:
        actions = {key: team.to_agent_action(_row(action, i), i) for key, i in places.items()}
        return actions if isinstance(obs, Mapping) else type(obs)(actions.values())

    return PolicyRows(rows, to_simulator, present)


def _names(team: Team) -> list[str]:
    return [name for name, _ in team.row.spaces]
