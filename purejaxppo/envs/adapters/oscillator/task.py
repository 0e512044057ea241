"""`oscillator/`: desynchronise an ensemble of coupled neurons with pulses.

A model of deep brain stimulation: the neurons synchronise spontaneously, as in Parkinson's tremor.
The agent observes their mean field, and each action is a stimulation, called `kick`. Models and
rewards are those of Krylov et al. 2020, https://arxiv.org/abs/2002.10948.

Every physical parameter in `env.options` is a number, or a range `low..high` that is sampled per
episode. Parameters are part of the state, so they can differ between environments of a batch.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.adapters.oscillator.models import (
    MODELS,
    Model,
    Neurons,
    OscillatorState,
    Params,
    runge_kutta,
)
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.options import Option, with_defaults
from purejaxppo.spaces import Box

PULSES = ("delta", "current", "biphasic")
PHYSICS = {
    "coupling": "Strength of the coupling to the mean field.",
    "coupling_drift": "Change of the coupling per integration step.",
    "current_mean": "Mean of the neurons' input currents (kuramoto: of their frequencies, Hz).",
    "current_std": "Standard deviation of the neurons' input currents.",
    "action_scale": "Size of the stimulation for an action of 1.",
    "action_noise": "Standard deviation of the noise added to each stimulation.",
    "observation_noise": "Standard deviation of the noise added to each observed mean field.",
    "penalty": "Cost per unit of stimulation.",
    "controlled": "Fraction of the neurons that are stimulated.",
}
"""Descriptions of the fields of `Params`."""


def _range(name: str, value: Any) -> tuple[float, float]:
    """Return (low, high) of a number or a range `low..high`.

    Raises:
        ValueError: invalid syntax, or low is above high.
    """
    parts = value.split("..") if isinstance(value, str) else [value, value]
    try:
        low, high = (float(part) for part in parts)
    except ValueError:
        raise ValueError(
            f"{name} = {value!r}: must be a number or a range such as 0.03..0.5"
        ) from None
    if not low <= high:
        raise ValueError(f"{name} = {value!r}: low must not be above high")
    return low, high


OPTIONS = {
    **{
        name: Option(
            None,
            f"{text} A number, or a range such as 0.03..0.5 from which each episode samples.",
            parse=_range,
        )
        for name, text in PHYSICS.items()
    },
    "num_neurons": Option(1000, "Number of neurons of an ensemble.", low=1),
    "history": Option(0, "Number of observed steps; 0: the model's default.", low=0),
    "warmup": Option(0, "Steps before an episode starts; 0: the model's default.", low=0),
    "skip": Option(1, "Integration steps per action.", low=1),
    "pulse": Option("delta", "Shape of a stimulation over time.", choices=PULSES),
    "width": Option(0, "Steps of the pulse's first phase; 0: as many as fit.", low=0),
    "gap": Option(0, "Steps between the phases of a biphasic pulse.", low=0),
    "ratio": Option(1, "Length of the second phase relative to the first.", low=1),
    "same_ensemble": Option(False, "Use the same input currents in all episodes."),
}


def make(name: str, config: EnvConfig) -> "Oscillator":
    """Create the ensemble `name` from `config.options`; see `OPTIONS`.

    Raises:
        ValueError: options that exclude each other.
    """
    model = MODELS[name]
    options = with_defaults(config.options, OPTIONS)
    defaults = {p: float(getattr(model.params, p)) for p in PHYSICS}
    ranges = {p: options[p] or (defaults[p], defaults[p]) for p in PHYSICS}
    history = options["history"] or model.history
    warmup = options["warmup"] or max(model.warmup, history)
    if warmup < history:
        raise ValueError(
            f"env.options.warmup = {warmup}: must be at least the history of {history} steps"
        )
    return Oscillator(
        model=model,
        low=Params(**{p: low for p, (low, _) in ranges.items()}),
        high=Params(**{p: high for p, (_, high) in ranges.items()}),
        max_episode_steps=model.max_episode_steps,
        num_neurons=options["num_neurons"],
        history=history,
        warmup=warmup,
        pulse=_waveform(options),
        same_ensemble=options["same_ensemble"],
    )


def _waveform(options: dict[str, Any]) -> tuple[float, ...]:
    """Return the current per unit of kick at each of the `skip` steps of an action."""
    pulse, skip = options["pulse"], options["skip"]
    gap, ratio = options["gap"], options["ratio"]
    if pulse == "delta":
        return (0.0,) * skip
    width = options["width"] or max(1, skip if pulse == "current" else (skip - gap) // (1 + ratio))
    wave = [1.0 / width] * width
    if pulse == "biphasic":  # the second phase cancels the charge of the first
        wave += [0.0] * gap + [-1.0 / (ratio * width)] * (ratio * width)
    if len(wave) > skip:
        raise ValueError(
            f"env.options.pulse = {pulse}: the pulse has {len(wave)} steps, but an action has only "
            f"{skip}. Set env.options.skip to at least {len(wave)}."
        )
    return (*wave, *[0.0] * (skip - len(wave)))


@dataclasses.dataclass(frozen=True)
class Oscillator(BaseTask):
    """One ensemble. The observation is the last H values of its mean field; it never terminates.

    A reset simulates hundreds of steps, so each rollout samples only `fresh_fraction` of the first
    states.
    """

    model: Model
    low: Params
    high: Params
    num_neurons: int
    history: int
    warmup: int
    pulse: tuple[float, ...]
    same_ensemble: bool = False
    max_episode_steps: int = 0

    cheap_reset = False
    fresh_fraction = 1.0 / 64.0
    frame_rate = 60.0  # slow enough to see the rhythm
    action = Box((1,), -1.0, 1.0)

    @cached_property
    def observation(self) -> Box:
        """The last H values of the mean field, oldest first."""
        steps = len(self.pulse)
        return Box((self.history,), slide=steps if steps < self.history else 0)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Sample an ensemble and simulate its warm-up without control; return (state, obs)."""
        params_key, start_key, current_key, warmup_key = jax.random.split(key, 4)
        params = self.draw_params(params_key)
        if self.same_ensemble:
            current_key = jax.random.key(0)
        state = self.begin(start_key, current_key, params)
        state, _ = jax.lax.scan(
            lambda state, key: (self.advance(key, state, jnp.zeros(()))[0], None),
            state,
            jax.random.split(warmup_key, -(-self.warmup // len(self.pulse))),
        )
        return state, state.y_history

    def draw_params(self, key: Key) -> Params:
        """Sample physical parameters between `low` and `high`."""
        keys = Params(*jax.random.split(key, len(PHYSICS)))
        return jax.tree.map(
            lambda k, low, high: low + (high - low) * jax.random.uniform(k),
            keys,
            self.low,
            self.high,
        )

    def begin(self, start_key: Key, current_key: Key, params: Params) -> OscillatorState:
        """Return an ensemble with given parameters, before its first step."""
        spread = jax.random.normal(current_key, (self.num_neurons,))
        neurons = self.model.start(start_key, self.num_neurons)
        x, y = self.model.fields(neurons)
        return OscillatorState(
            params=params,
            neurons=neurons,
            current=params.current_mean + params.current_std * spread,
            x_history=jnp.full(self.history, x),
            y_history=jnp.full(self.history, y),
            kick=jnp.zeros(()),
        )

    def step(
        self, key: Key, state: OscillatorState, action: EnvAction
    ) -> tuple[OscillatorState, TaskStep]:
        """Stimulate the neurons with an action in [-1, 1], then integrate `skip` time steps."""
        state, cost = self.advance(key, state, state.params.action_scale * action[0])
        reward = -cost - state.params.penalty * jnp.abs(state.kick)
        false = jnp.array(False)
        return state, TaskStep(state.y_history, reward, false, false)

    def advance(
        self, key: Key, state: OscillatorState, kick: jax.Array
    ) -> tuple[OscillatorState, jax.Array]:
        """Apply a kick and integrate; return (state, cost summed over the integration steps)."""
        action_key, field_key = jax.random.split(key)
        params = state.params
        kick = kick + params.action_noise * jax.random.normal(action_key)
        reached = jnp.arange(self.num_neurons) < params.controlled * self.num_neurons
        pulse = jnp.where(reached, kick, 0.0)
        noise = params.observation_noise * jax.random.normal(field_key, (len(self.pulse),))
        delta = not any(self.pulse)
        if delta:
            state = state.replace(neurons=self.model.kick(state.neurons, pulse))

        def integrate(
            state: OscillatorState, inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[OscillatorState, jax.Array]:
            noise, wave = inputs
            flow = None if delta else wave * pulse / self.model.step_size
            return self.integrate(state, flow, noise)

        inputs = (noise, jnp.asarray(self.pulse))
        if len(self.pulse) == 1:
            state, cost = integrate(state, jax.tree.map(lambda x: x[0], inputs))
        else:
            state, costs = jax.lax.scan(integrate, state, inputs)
            cost = jnp.sum(costs)
        return state.replace(kick=kick), cost

    def integrate(
        self, state: OscillatorState, flow: jax.Array | None, noise: jax.Array
    ) -> tuple[OscillatorState, jax.Array]:
        """Take one Runge-Kutta step with a current `flow` [N] or None; return (state, cost)."""
        params, model = state.params, self.model

        def derivative(neurons: Neurons) -> Neurons:
            return model.derivative(neurons, state.current, params.coupling, flow)

        neurons = runge_kutta(derivative, state.neurons, model.step_size)
        x, y = model.fields(neurons)
        state = state.replace(
            params=params.replace(coupling=params.coupling + params.coupling_drift),
            neurons=neurons,
            x_history=_append(state.x_history, x),
            y_history=_append(state.y_history, y + noise),
        )
        return state, model.cost(x, state.x_history, state.y_history)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: the mean fields, the kick and a few neurons over time."""
        from purejaxppo.video import charts

        signals = [
            {
                "X": np.asarray(state.x_history[-1]),
                "Y": np.asarray(state.y_history[-1]),
                "kick": np.asarray(state.kick),
                "neurons": np.asarray(self.model.signal(state.neurons))[:5],
            }
            for state in states
        ]
        return charts.frames(signals, height=height, width=width)


def _append(history: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.concatenate([history[1:], value[None]])
