"""Neuron models: equations, observed mean fields and costs."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purejaxppo.aliases import Key, Scalar

BETA_BAND = (13.0, 30.0)  # Hz


Neurons = tuple[jax.Array, ...]
"""Variables of a model, [N] each."""


class Params(struct.PyTreeNode):
    """Physical parameters of an ensemble; every field is a traced float []."""

    coupling: Scalar  # strength of the coupling to the mean field
    coupling_drift: Scalar  # change of the coupling per integration step
    current_mean: Scalar  # of the input currents (kuramoto: of the frequencies, Hz)
    current_std: Scalar
    action_scale: Scalar  # size of the kick for an action of 1
    action_noise: Scalar  # standard deviation of the noise on each kick
    observation_noise: Scalar  # standard deviation of the noise on each observed mean field
    penalty: Scalar  # cost per unit of kick
    controlled: Scalar  # fraction of the neurons that receive the kick


class OscillatorState(struct.PyTreeNode):
    """State of an ensemble of N neurons, with the history of its mean field."""

    params: Params
    neurons: Neurons
    current: jax.Array  # [N]
    x_history: jax.Array  # [H] mean of the first variable, oldest first
    y_history: jax.Array  # [H] the observed mean field
    kick: jax.Array  # [] the last kick


class Model(NamedTuple):
    """A neuron model, and the settings of its task."""

    start: Callable[[Key, int], Neurons]  # (key, N) -> neurons
    derivative: Callable[[Neurons, jax.Array, Scalar, jax.Array | None], Neurons]
    # (neurons, current [N], coupling, pulse [N] or None) -> neurons' change
    kick: Callable[[Neurons, jax.Array], Neurons]  # (neurons, pulse [N]) -> neurons
    signal: Callable[[Neurons], jax.Array]  # neurons -> [N] signal of each neuron
    fields: Callable[[Neurons], tuple[jax.Array, jax.Array]]
    # neurons -> (X, Y): means of the signal and of the observed variable
    cost: Callable[..., jax.Array]  # (X, x_history, y_history) -> synchrony of the ensemble
    feedback: Callable[..., jax.Array]  # (X, Y, x_history, y_history) -> kick of a linear baseline
    step_size: float
    step_seconds: float  # physical time of a step, for frequencies
    history: int
    warmup: int
    max_episode_steps: int
    params: Params


def _params(**values: float) -> Params:
    fields = {
        "coupling_drift": 0.0,
        "action_noise": 0.0,
        "observation_noise": 0.0,
        "controlled": 1.0,
        **values,
    }
    return Params(**fields)


def _bvdp(
    neurons: Neurons, current: jax.Array, coupling: Scalar, pulse: jax.Array | None
) -> Neurons:
    """Compute the Bonhoeffer-van der Pol equations.

    x' = x - x^3/3 - y + I + eps X, y' = 0.1 (x - 0.8 y + 0.7).
    """
    x, y = neurons
    drive = current + coupling * jnp.mean(x)
    drive = drive if pulse is None else drive + pulse
    return x - x * x * x / 3.0 - y + drive, 0.1 * (x - 0.8 * y + 0.7)


def _hindmarsh_rose(
    neurons: Neurons, current: jax.Array, coupling: Scalar, pulse: jax.Array | None
) -> Neurons:
    """Compute the Hindmarsh-Rose equations.

    x' = y - x^3 + 3x^2 - z + I + eps X, y' = 1 - 5x^2 - y, z' = 0.006 (4 (x + 1.56) - z).
    """
    x, y, z = neurons
    drive = current + coupling * jnp.mean(x)
    drive = drive if pulse is None else drive + pulse
    squared = x * x
    return (
        y - x * squared + 3.0 * squared - z + drive,
        1.0 - 5.0 * squared - y,
        0.006 * (4.0 * (x + 1.56) - z),
    )


def _kuramoto(
    neurons: Neurons, current: jax.Array, coupling: Scalar, pulse: jax.Array | None
) -> Neurons:
    """Compute the Kuramoto equation.

    theta' = 2 pi f + K mean(sin(theta_j - theta)) - pulse sin(theta).
    """
    (phase,) = neurons
    sin, cos = jnp.sin(phase), jnp.cos(phase)
    pull = coupling * (jnp.mean(sin) * cos - jnp.mean(cos) * sin)
    change = 2.0 * np.pi * current + pull
    return (change if pulse is None else change - pulse * sin,)


def _uniform(count: int) -> Callable[[Key, int], Neurons]:
    def start(key: Key, num_neurons: int) -> Neurons:
        values = jax.random.uniform(key, (count, num_neurons), minval=-1.0, maxval=1.0)
        return tuple(values)

    return start


def _kick_first(neurons: Neurons, pulse: jax.Array) -> Neurons:
    return (neurons[0] + pulse, *neurons[1:])


def _two_means(neurons: Neurons) -> tuple[jax.Array, jax.Array]:
    return jnp.mean(neurons[0]), jnp.mean(neurons[1])


def _one_mean(neurons: Neurons) -> tuple[jax.Array, jax.Array]:
    mean = jnp.mean(jnp.cos(neurons[0]))
    return mean, mean


def _beta_power(signal: jax.Array, step_seconds: float) -> jax.Array:
    """Compute the power of a signal [H] between 13 and 30 Hz."""
    length = signal.shape[0]
    frequencies = np.fft.rfftfreq(length, step_seconds)
    inside = (frequencies >= BETA_BAND[0]) & (frequencies <= BETA_BAND[1])
    angle = 2 * np.pi * np.arange(length) * step_seconds * frequencies[inside][:, None]
    waves = jnp.asarray(np.concatenate([np.cos(angle), np.sin(angle)]) / length, jnp.float32)
    return 2.0 * jnp.sum(jnp.square(waves @ (signal - jnp.mean(signal))))


def _bvdp_feedback(
    x: jax.Array, y: jax.Array, x_history: jax.Array, y_history: jax.Array
) -> jax.Array:
    u, v = x - jnp.mean(x_history), y - jnp.mean(y_history)
    return -0.05 * (np.cos(5.89) * u + 2.1 * np.sin(5.89) * v)


MODELS = {
    "bvdp": Model(
        start=_uniform(2),
        derivative=_bvdp,
        kick=_kick_first,
        signal=lambda neurons: neurons[0],
        fields=_two_means,
        cost=lambda x, x_history, y_history: jnp.square(x - jnp.mean(x_history)),
        feedback=_bvdp_feedback,
        step_size=0.2,
        step_seconds=1.0 / (20.0 * 162.0),  # its rhythm of 162 steps is taken as 20 Hz
        history=250,
        warmup=250,
        max_episode_steps=10_000,
        params=_params(
            coupling=0.03, current_mean=0.6, current_std=0.1, action_scale=0.2, penalty=2.0
        ),
    ),
    "hindmarsh_rose": Model(
        start=_uniform(3),
        derivative=_hindmarsh_rose,
        kick=_kick_first,
        signal=lambda neurons: neurons[0],
        fields=_two_means,
        cost=lambda x, x_history, y_history: 2.0 * jnp.square(x + 0.4),
        feedback=lambda x, y, x_history, y_history: -0.2 * (x - jnp.mean(x_history)),
        step_size=0.1,
        step_seconds=0.001,
        history=150,
        warmup=10_000,
        max_episode_steps=5_000,
        params=_params(
            coupling=0.2, current_mean=3.0, current_std=0.02, action_scale=0.5, penalty=0.5
        ),
    ),
    "kuramoto": Model(
        start=lambda key, n: (jax.random.uniform(key, (n,), maxval=2 * np.pi),),
        derivative=_kuramoto,
        kick=lambda neurons, pulse: (neurons[0] - pulse * jnp.sin(neurons[0]),),
        signal=lambda neurons: jnp.cos(neurons[0]),
        fields=_one_mean,
        cost=lambda x, x_history, y_history: _beta_power(y_history, 0.002),
        feedback=lambda x, y, x_history, y_history: -0.1 * x,
        step_size=0.002,
        step_seconds=0.002,
        history=250,
        warmup=1_000,
        max_episode_steps=5_000,
        params=_params(
            coupling=20.0, current_mean=20.0, current_std=1.0, action_scale=0.2, penalty=0.5
        ),
    ),
}


def runge_kutta(
    derivative: Callable[[Neurons], Neurons], neurons: Neurons, step_size: float
) -> Neurons:
    """Take a classical fourth-order Runge-Kutta step of neurons' = derivative(neurons)."""

    def ahead(slope: Neurons, size: float) -> Neurons:
        return jax.tree.map(lambda x, k: x + size * k, neurons, slope)

    k1 = derivative(neurons)
    k2 = derivative(ahead(k1, 0.5 * step_size))
    k3 = derivative(ahead(k2, 0.5 * step_size))
    k4 = derivative(ahead(k3, step_size))
    return jax.tree.map(
        lambda x, a, b, c, d: x + step_size / 6.0 * (a + 2.0 * (b + c) + d),
        neurons,
        k1,
        k2,
        k3,
        k4,
    )
