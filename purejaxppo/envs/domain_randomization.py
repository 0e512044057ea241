"""Domain randomisation: task parameters sampled for each episode, or set during a run.

A task with variable parameters defines:

    parameters          name -> nominal value: 1 for a factor of a physical model, or the value of
                        a simulator parameter
    adjusted(values)    name -> [] array, traced or not -> a copy of the task with these values

`adjusted` starts from the nominal values. Sampled factors multiply the values of a curriculum.

A simulator may also define a function that samples more values for `adjusted`:

    draw_parameters(key)    -> name -> array
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from purejaxppo import streams
from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask, ParameterValues, as_base_task
from purejaxppo.envs.wrappers import ReturnPreservingWrapper


class Randomized(ReturnPreservingWrapper):
    """Sample parameters for each episode: nominal values times uniform factors in [1 - x, 1 + x].

    Values of `draw_parameters`, if the task defines it, are added. All sampled values are part of
    the task state: resets sample them, and checkpoints contain them.

    References: Tobin et al. 2017, https://arxiv.org/abs/1703.06907; for dynamics, Peng et al. 2018,
    https://arxiv.org/abs/1710.06537.

    Args:
        task: a task with variable parameters.
        spread: x of each randomised parameter, at least 0 and below 1.
        values: values to set, scalars; other parameters keep their nominal values.
    """

    def __init__(
        self, task: Any, spread: Mapping[str, float], values: Mapping[str, Any] | None = None
    ) -> None:
        """Wrap `task`."""
        super().__init__(task)
        self.spread = dict(spread)
        self.values = dict(values or {})

    def factors(self, key: Key) -> dict[str, jax.Array]:
        """Sample one scalar factor for each randomised parameter of an episode."""
        keys = jax.random.split(key, len(self.spread))
        return {
            name: 1.0 + x * jax.random.uniform(key, minval=-1.0, maxval=1.0)
            for (name, x), key in zip(self.spread.items(), keys, strict=True)
        }

    def with_factors(self, samples: Mapping[str, Any]) -> BaseTask:
        """Return the task with its parameters multiplied by the sampled factors."""
        factors = {name: x for name, x in samples.items() if name in self.spread}
        nominal = self.task.parameters
        values = {name: self.values.get(name, nominal[name]) * x for name, x in factors.items()}
        return self.task.adjusted({**self.values, **samples, **values})

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state, without the sampled values."""
        return super().unwrap(state[1])

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the global state of the task with the parameters of the episode."""
        samples, state = state
        return self.with_factors(samples).global_state(state)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Sample parameters and reset; return ((samples, state), obs)."""
        samples = self.factors(streams.stream(key, streams.VARIATION))
        if self.task.draw_parameters is not None:
            samples |= self.task.draw_parameters(streams.stream(key, streams.CUSTOM_VARIATION))
        state, obs = self.with_factors(samples).reset(key)
        return (samples, state), obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task with the parameters of the episode."""
        samples, state = state
        state, out = self.with_factors(samples).step(key, state, action)
        return (samples, state), out


def vary(task: BaseTask, spread: Mapping[str, float], values: ParameterValues) -> BaseTask:
    """Return the task with parameters set and randomised; the task itself if neither applies.

    Args:
        task: task of an adapter.
        spread: see `Randomized`.
        values: values to set by name, scalars.
    """
    if spread or task.draw_parameters is not None:
        return Randomized(task, spread, values)
    return as_base_task(task.adjusted(values)) if values else task


def check(task: BaseTask, config: EnvConfig) -> None:
    """Check env.randomize and env.curriculum against the parameters of the task.

    Raises:
        ValueError: an unknown parameter, a task without parameters, or an invalid spread.
    """
    parameters = task.parameters
    for field, names in (("randomize", config.randomize), ("curriculum", config.curriculum)):
        for name in names:
            if not parameters:
                raise ValueError(
                    f"env.{field}: {config.name} has no parameters to vary. Remove env.{field}."
                )
            if name not in parameters:
                raise ValueError(
                    f"env.{field}.{name}: {config.name} has no such parameter. It has "
                    f"{', '.join(parameters)}."
                )
    check_spread(config)


def check_spread(config: EnvConfig) -> None:
    """Raise ValueError unless every spread is at least 0 and below 1."""
    for name, x in config.randomize.items():
        if not 0 <= x < 1:
            raise ValueError(
                f"env.randomize.{name} = {x}: must be at least 0 and below 1, because factors are "
                f"sampled between 1 - {x} and 1 + {x}"
            )


def check_host(config: EnvConfig) -> None:
    """Raise ValueError if parameters are varied that a host simulator does not support."""
    for field, names in (("randomize", config.randomize), ("curriculum", config.curriculum)):
        if names:
            raise ValueError(
                f"env.{field} needs a simulator in JAX or unity/, but {config.name} runs on the "
                f"host. Vary its parameters in the simulator itself."
            )


class ModelOverride:
    """A simulator with its physical model replaced.

    Brax and Playground hold their model in an attribute, inside of wrappers. It is replaced while a
    call is traced, as in their own wrappers. A copy of the simulator would not work, because
    simulators store bound methods.

    Args:
        env: the simulator.
        attribute: the attribute that holds the model.
        model: the new model.
    """

    def __init__(self, env: Any, attribute: str, model: Any) -> None:
        """Store the model without replacing anything."""
        self.env, self.attribute, self.model = env, attribute, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @contextlib.contextmanager
    def _replaced(self) -> Iterator[None]:
        env = self.env.unwrapped
        original = getattr(env, self.attribute)
        setattr(env, self.attribute, self.model)
        try:
            yield
        finally:
            setattr(env, self.attribute, original)

    def reset(self, key: Key) -> EnvState:
        """Reset the simulator with the new model."""
        with self._replaced():
            return self.env.reset(key)

    def step(self, state: EnvState, action: EnvAction) -> EnvState:
        """Step the simulator with the new model."""
        with self._replaced():
            return self.env.step(state, action)


def scaled(model: Any, fields: Mapping[str, tuple[str, ...]], factors: Mapping[str, Any]) -> Any:
    """Return a physical model with some arrays multiplied by factors.

    Args:
        model: a pytree with `tree_replace`, such as an MJX model.
        fields: name -> dotted paths of the arrays to multiply.
        factors: factor of each parameter by name, scalars.
    """
    return model.tree_replace(
        {
            path: functools.reduce(getattr, path.split("."), model) * factor
            for name, factor in factors.items()
            for path in fields[name]
        }
    )
