"""`oscillator/`: ensembles of coupled neurons that synchronise, and pulses to desynchronise them.

Deep brain stimulation as a task: an ensemble that synchronises by itself, as in Parkinson's tremor,
is observed through its mean field and kicked by one action per step. The model and its rewards are
those of Krylov et al. 2020, https://arxiv.org/abs/2002.10948.

Every physical quantity is a number or a range `low..high` in `env.options`, drawn per episode, and
part of the state, so that randomisation and sweeps are a vmap.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.config.hints import wrong_type
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.options import alike, check_known
from purejaxppo.envs.oscillator.models import MODELS, Model, Params, State, runge_kutta
from purejaxppo.spaces import Box

PULSES = ("delta", "current", "biphasic")
COUNTS = {
    "num_neurons": 1000,
    "history": 0,
    "warmup": 0,
    "skip": 1,
    "width": 0,
    "gap": 0,
    "ratio": 1,
}
"""Integer options; 0 selects the model's own value."""
PHYSICS = [field.name for field in dataclasses.fields(Params)]


def task_names() -> list[str]:
    """The tasks of this family."""
    return list(MODELS)


def make(name: str, config: EnvConfig):
    """The ensemble called `name`.

    Options of `config`: any field of `Params`, as a number or as a range `low..high` from which
    every episode draws; `num_neurons`; `history` (observed steps) and `warmup` (steps before an
    episode); `skip`, integration steps per action; `pulse` delta, current or biphasic, with `width`
    and `gap` in steps and the `ratio` of the second phase's length to the first; `same_ensemble`,
    to use the same neurons' currents in all episodes.

    Raises:
        ValueError: an unknown option or an invalid value.
    """
    model = MODELS[name]
    options = dict(config.options)
    known = [*PHYSICS, *COUNTS, "pulse", "same_ensemble"]
    check_known(f"oscillator/{name}", options, known)
    counts = {option: _count(option, options.get(option, COUNTS[option])) for option in COUNTS}
    ranges = {p: _range(p, options.get(p, getattr(model.params, p))) for p in PHYSICS}
    history = counts["history"] or model.history
    warmup = counts["warmup"] or max(model.warmup, history)
    if warmup < history:
        raise ValueError(
            f"env.options.warmup = {warmup} is shorter than the history of {history} steps it fills"
        )
    if counts["num_neurons"] < 1:
        raise ValueError("env.options.num_neurons = 0 must be at least 1")
    return Oscillator(
        model=model,
        low=Params(**{p: low for p, (low, _) in ranges.items()}),
        high=Params(**{p: high for p, (_, high) in ranges.items()}),
        num_neurons=counts["num_neurons"],
        history=history,
        warmup=warmup,
        pulse=_waveform(options.get("pulse", "delta"), counts),
        same_ensemble=alike("same_ensemble", options.get("same_ensemble", False), False),
    )


def _count(option: str, value) -> int:
    number = whole(value)
    if number is None:
        raise ValueError(wrong_type(f"env.options.{option}", value, int))
    if number < min(COUNTS[option], 1):
        raise ValueError(
            f"env.options.{option} = {value} must be at least {min(COUNTS[option], 1)}"
        )
    return number


def _range(option: str, value) -> tuple[float, float]:
    parts = value.split("..") if isinstance(value, str) else [value, value]
    try:
        low, high = (float(part) for part in parts)
    except ValueError:
        raise ValueError(
            f"env.options.{option} = {value!r} must be a number, or a range such as 0.03..0.5"
        ) from None
    if not low <= high:
        raise ValueError(f"env.options.{option} = {value!r}: low is above high")
    return low, high


def _waveform(pulse, counts: dict[str, int]) -> tuple[float, ...]:
    """Current per unit of kick in each of the `skip` steps of an action; a delta kick has none."""
    if pulse not in PULSES:
        raise ValueError(f"env.options.pulse = {pulse!r} must be one of {', '.join(PULSES)}")
    skip, gap, ratio = counts["skip"], counts["gap"], counts["ratio"]
    if pulse == "delta":
        return (0.0,) * skip
    width = counts["width"] or max(1, skip if pulse == "current" else (skip - gap) // (1 + ratio))
    wave = [1.0 / width] * width
    if pulse == "biphasic":  # the second phase takes back the charge of the first
        wave += [0.0] * gap + [-1.0 / (ratio * width)] * (ratio * width)
    if len(wave) > skip:
        raise ValueError(
            f"env.options.pulse = {pulse} takes {len(wave)} steps and env.options.skip leaves "
            f"{skip} per action; set skip to {len(wave)} or more"
        )
    return (*wave, *[0.0] * (skip - len(wave)))


@dataclasses.dataclass(frozen=True)
class Oscillator:
    """One ensemble. It observes the last H values of its mean field and is never terminated.

    Warming an ensemble up costs hundreds of steps, so that only `fresh_fraction` of the starts are
    drawn anew before each rollout.
    """

    model: Model
    low: Params
    high: Params
    num_neurons: int
    history: int
    warmup: int
    pulse: tuple[float, ...]
    same_ensemble: bool = False

    cheap_reset = False
    fresh_fraction = 1.0 / 64.0
    frame_rate = 60.0  # slowed down, so that the rhythm is visible
    action = Box((1,), -1.0, 1.0)

    @property
    def observation(self) -> Box:
        """The last H values of the mean field, oldest first."""
        steps = len(self.pulse)
        return Box((self.history,), slide=steps if steps < self.history else 0)

    @property
    def max_episode_steps(self) -> int:
        """The model's time limit, which truncates."""
        return self.model.max_episode_steps

    def reset(self, key):
        """A key -> (state, obs): a new ensemble after its un-actuated warm-up."""
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

    def draw_params(self, key) -> Params:
        """Draws physics between `low` and `high`."""
        keys = Params(*jax.random.split(key, len(PHYSICS)))
        return jax.tree.map(
            lambda k, low, high: low + (high - low) * jax.random.uniform(k),
            keys,
            self.low,
            self.high,
        )

    def begin(self, start_key, current_key, params: Params) -> State:
        """An ensemble of given physics, before any step."""
        spread = jax.random.normal(current_key, (self.num_neurons,))
        neurons = self.model.start(start_key, self.num_neurons)
        x, y = self.model.fields(neurons)
        return State(
            params=params,
            neurons=neurons,
            current=params.current_mean + params.current_std * spread,
            x_history=jnp.full(self.history, x),
            y_history=jnp.full(self.history, y),
            kick=jnp.zeros(()),
        )

    def step(self, key, state: State, action):
        """One action in [-1, 1]: a kick of all neurons, then `skip` integration steps."""
        state, cost = self.advance(key, state, state.params.action_scale * action[0])
        reward = -cost - state.params.penalty * jnp.abs(state.kick)
        false = jnp.array(False)
        return state, TaskStep(state.y_history, reward, false, false)

    def advance(self, key, state: State, kick) -> tuple[State, jax.Array]:
        """(key, state, kick) -> (state, synchrony summed over the integration steps)."""
        action_key, field_key = jax.random.split(key)
        params = state.params
        kick = kick + params.action_noise * jax.random.normal(action_key)
        reached = jnp.arange(self.num_neurons) < params.controlled * self.num_neurons
        pulse = jnp.where(reached, kick, 0.0)
        noise = params.observation_noise * jax.random.normal(field_key, (len(self.pulse),))
        delta = not any(self.pulse)
        if delta:
            state = state.replace(neurons=self.model.kick(state.neurons, pulse))

        def integrate(state: State, now):
            noise, wave = now
            flow = None if delta else wave * pulse / self.model.step_size
            return self.integrate(state, flow, noise)

        now = (noise, jnp.asarray(self.pulse))
        if len(self.pulse) == 1:
            state, cost = integrate(state, jax.tree.map(lambda x: x[0], now))
        else:
            state, costs = jax.lax.scan(integrate, state, now)
            cost = jnp.sum(costs)
        return state.replace(kick=kick), cost

    def integrate(self, state: State, flow, noise) -> tuple[State, jax.Array]:
        """One Runge-Kutta step under a current `flow` [N] or None -> (state, synchrony)."""
        params, model = state.params, self.model

        def derivative(neurons):
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

    def draw(self, states, *, height, width):
        """Frames: the mean fields, the kick and a few neurons over time."""
        from purejaxppo.pictures import charts

        seen = [
            {
                "X": np.asarray(state.x_history[-1]),
                "Y": np.asarray(state.y_history[-1]),
                "kick": np.asarray(state.kick),
                "neurons": np.asarray(self.model.signal(state.neurons))[:5],
            }
            for state in states
        ]
        return charts.film(seen, height=height, width=width)


def _append(history, value):
    return jnp.concatenate([history[1:], value[None]])
