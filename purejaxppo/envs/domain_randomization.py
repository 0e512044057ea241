"""Tasks whose parameters vary: drawn anew for each episode, or set during a run.

A task that can be varied declares its parameters and returns a copy with other values:

    parameters          name -> nominal value: a factor, 1, of a physical model's numbers, or the
                        parameter itself, where a simulator has such
    adjusted(values)    name -> [] array, traced or not -> the same task with these

A task is adjusted once, from its nominal values; the drawn factors multiply the set values.

A simulator may bring a function of its own, which draws further values that `adjusted` takes:

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
    """Draws every episode's parameters: nominal values times uniform factors in [1 - x, 1 + x].

    What the task's own `draw_parameters` draws, if there is one, comes to these. All are part of
    the task's state, so that resets draw them and saves include them.

    Tobin et al. 2017, https://arxiv.org/abs/1703.06907; of dynamics, Peng et al. 2018,
    https://arxiv.org/abs/1710.06537.

    Args:
        task: one that can be varied.
        spread: x of each parameter that varies, at least 0 and below 1.
        values: values that parameters are set to, [] each; nominal values for all others.
    """

    def __init__(
        self, task: Any, spread: Mapping[str, float], values: Mapping[str, Any] | None = None
    ) -> None:
        """Vary `task`."""
        super().__init__(task)
        self.spread = dict(spread)
        self.values = dict(values or {})

    def factors(self, key: Key) -> dict[str, jax.Array]:
        """One episode's factors, [] each."""
        keys = jax.random.split(key, len(self.spread))
        return {
            name: 1.0 + x * jax.random.uniform(key, minval=-1.0, maxval=1.0)
            for (name, x), key in zip(self.spread.items(), keys, strict=True)
        }

    def with_factors(self, drawn: Mapping[str, Any]) -> BaseTask:
        """The task with its parameters multiplied by drawn factors, and with its own draws."""
        factors = {name: x for name, x in drawn.items() if name in self.spread}
        nominal = self.task.parameters
        values = {name: self.values.get(name, nominal[name]) * x for name, x in factors.items()}
        return self.task.adjusted({**self.values, **drawn, **values})

    def unwrap(self, state: EnvState) -> EnvState:
        """The innermost task's state, without the factors."""
        return super().unwrap(state[1])

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """(key) -> ((factors and own draws, state), obs)."""
        drawn = self.factors(streams.stream(key, streams.VARIATION))
        if self.task.draw_parameters is not None:
            drawn |= self.task.draw_parameters(streams.stream(key, streams.CUSTOM_VARIATION))
        state, obs = self.with_factors(drawn).reset(key)
        return (drawn, state), obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task with what was drawn for the episode."""
        drawn, state = state
        state, out = self.with_factors(drawn).step(key, state, action)
        return (drawn, state), out


def vary(task: BaseTask, spread: Mapping[str, float], values: ParameterValues) -> BaseTask:
    """A task with parameters set and drawn: the task itself if neither is requested.

    Args:
        task: from an adapter.
        spread: see `Randomized`.
        values: name -> [] array or number.
    """
    if spread or task.draw_parameters is not None:
        return Randomized(task, spread, values)
    return as_base_task(task.adjusted(values)) if values else task


def check(task: BaseTask, config: EnvConfig) -> None:
    """Check that the config's parameters can be varied, before anything is compiled.

    Raises:
        ValueError: an unknown parameter (with the known ones), a task without any, or a
            spread that would make a parameter 0 or change its sign.
    """
    known = task.parameters
    for field, names in (("randomize", config.randomize), ("curriculum", config.curriculum)):
        for name in names:
            if not known:
                raise ValueError(f"env.{field}: {config.name} has no parameters to vary")
            if name not in known:
                raise ValueError(
                    f"env.{field}.{name}: {config.name} has no such parameter. It has "
                    f"{', '.join(known)}."
                )
    check_spread(config)


def check_spread(config: EnvConfig) -> None:
    """Raise ValueError if a range of factors reaches 0, or is none."""
    for name, x in config.randomize.items():
        if not 0 <= x < 1:
            raise ValueError(
                f"env.randomize.{name} = {x} must be at least 0 and below 1, because factors are "
                f"drawn between 1 - {x} and 1 + {x}"
            )


def check_host(config: EnvConfig) -> None:
    """Raise ValueError if a simulator on the host without parameters of ours is to be varied."""
    for field, names in (("randomize", config.randomize), ("curriculum", config.curriculum)):
        if names:
            raise ValueError(
                f"env.{field} needs a simulator in JAX or unity/, but {config.name} runs on the "
                f"host. Vary its parameters in the simulator itself."
            )


class ModelOverride:
    """A simulator that computes with another physical model than its own.

    Brax and Playground hold their model in an attribute, which is exchanged while a call is traced,
    as in their own wrappers: simulators store bound methods, which a copy would not update.

    Args:
        env: the simulator.
        attribute: the simulator's attribute that holds its model.
        model: the model to use instead.
    """

    def __init__(self, env: Any, attribute: str, model: Any) -> None:
        """Store the model; nothing is exchanged yet."""
        self.env, self.attribute, self.model = env, attribute, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @contextlib.contextmanager
    def _exchanged(self) -> Iterator[None]:
        own = getattr(self.env, self.attribute)
        setattr(self.env, self.attribute, self.model)
        try:
            yield
        finally:
            setattr(self.env, self.attribute, own)

    def reset(self, key: Key) -> EnvState:
        """Reset the simulator with the other model."""
        with self._exchanged():
            return self.env.reset(key)

    def step(self, state: EnvState, action: EnvAction) -> EnvState:
        """Step the simulator with the other model."""
        with self._exchanged():
            return self.env.step(state, action)


def scaled(model: Any, fields: Mapping[str, tuple[str, ...]], factors: Mapping[str, Any]) -> Any:
    """A physical model with some of its numbers multiplied.

    Args:
        model: a pytree with `tree_replace`, such as MJX's.
        fields: name -> dotted paths of the arrays that a factor multiplies.
        factors: name -> [].
    """
    return model.tree_replace(
        {
            path: functools.reduce(getattr, path.split("."), model) * factor
            for name, factor in factors.items()
            for path in fields[name]
        }
    )
