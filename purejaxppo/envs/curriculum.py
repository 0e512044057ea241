"""Curriculum: environment parameters as functions of the progress of the run.

The learner passes the progress before each rollout. All environments then use the parameters at
that progress, even in the middle of an episode. Values are traced, so nothing is recompiled.
Evaluations use the final parameters.

Reference: Bengio et al. 2009, https://doi.org/10.1145/1553374.1553380.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar
from purejaxppo.config import extensions
from purejaxppo.config.references import CodeRef, is_reference
from purejaxppo.envs.base import Env, EnvStep, Starts, TaskStep
from purejaxppo.envs.vectorize import VectorEnv

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
RAMP = re.compile(rf"{NUMBER} to {NUMBER}(?: until {NUMBER})?")

ParameterValues = dict[str, jax.Array]
"""Parameters by name, float32 [] each."""


def ramp(start: float, end: float, until: float, progress: Scalar) -> Scalar:
    """Interpolate linearly from `start` to `end`, constant after progress `until`; scalar."""
    return start + (end - start) * jnp.minimum(progress / until, 1.0)


def parse(name: str, text: str | CodeRef) -> Callable[[Scalar], Scalar]:
    """Parse an entry of `env.curriculum` into a function from progress to a value, both scalars.

    Raises:
        ValueError: invalid syntax, or a function that is missing or does not return a number.
    """
    where = f"env.curriculum.{name}"
    if is_reference(text):
        number = jax.ShapeDtypeStruct((), jnp.float32)
        convert = partial(jnp.asarray, dtype=jnp.float32)
        point = extensions.CURRICULUM
        function: Callable[[Scalar], Scalar] = extensions.load_function(
            point, text, number, expected=number, field=where, convert=convert
        )
        return function
    match = RAMP.fullmatch(" ".join(str(text).split()))
    if not match:
        raise ValueError(
            f"{where} = {text!r}: must be a ramp, such as '0.5 to 1.0' or '0.5 to 1.0 until 0.6', "
            f"or a function as file.py:function"
        )
    start, end, until = (float(number) for number in match.groups(default="1"))
    if not 0 < until <= 1:
        raise ValueError(
            f"{where} = {text!r}: the number after 'until' is a fraction of the run. It must be "
            f"above 0 and at most 1."
        )
    return partial(ramp, start, end, until)


def schedule(entries: Mapping[str, str]) -> Callable[[Scalar], ParameterValues]:
    """Return a function from progress [] to all parameters of a curriculum; see `parse`."""
    functions = {name: parse(name, text) for name, text in entries.items()}

    def values(progress: Scalar) -> ParameterValues:
        progress = jnp.asarray(progress, jnp.float32)  # custom functions may call methods of arrays
        return {name: jnp.asarray(f(progress), jnp.float32) for name, f in functions.items()}

    return values


class CurriculumState(NamedTuple):
    """N environments and their current parameters."""

    values: ParameterValues  # [] each
    env: EnvState  # state of the environments


class CurriculumEnv(Env):
    """N environments with parameters that `begin_rollout` updates.

    Args:
        values: function from the progress, scalar, to parameters.
        build: function from parameters, traced or not, to environments.
    """

    def __init__(
        self,
        values: Callable[[Scalar], ParameterValues],
        build: Callable[[ParameterValues], VectorEnv],
    ) -> None:
        """Copy the spec of the environments without computing anything."""
        self.values, self.build = values, build
        final = build(values(1.0))
        self.spec, self.task = final.spec, final.task
        self.to_simulator = final.to_simulator

    def reset(self, key: Key) -> tuple[CurriculumState, Obs]:
        """Start an episode in every environment, with the parameters at progress 0."""
        values = self.values(0.0)
        state, obs = self.build(values).reset(key)
        return CurriculumState(values, state), obs

    def raw_step(
        self, key: Key, state: CurriculumState, action: EnvAction
    ) -> tuple[EnvState, TaskStep]:
        """See `VectorEnv.raw_step`."""
        return self.build(state.values).raw_step(key, state.env, action)

    def step(
        self, key: Key, state: CurriculumState, action: EnvAction
    ) -> tuple[CurriculumState, EnvStep]:
        """Step all environments with actions [N, ...]; see `Env`."""
        next_state, out = self.build(state.values).step(key, state.env, action)
        return state._replace(env=next_state), out

    def begin_rollout(self, state: CurriculumState, key: Key, progress: Scalar) -> CurriculumState:
        """Set the parameters at `progress`, and sample starts with them."""
        values = self.values(progress)
        env_state = self.build(values).begin_rollout(state.env, key, progress)
        return CurriculumState(values, env_state)

    def starts(self, state: CurriculumState) -> Starts:
        """Return the first observations of episodes until the next `begin_rollout`."""
        return self.build(state.values).starts(state.env)
