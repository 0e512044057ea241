"""Report that compares a controller with baselines: synchrony, energy, spectra."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Key
from purejaxppo.envs.adapters.oscillator.models import BETA_BAND, OscillatorState
from purejaxppo.envs.adapters.oscillator.task import Oscillator

Control = Callable[[Key, OscillatorState], jax.Array]
"""(key, state of one ensemble) -> kick."""
Act = Callable[..., Any]
"""(key, obs [N, ...]) -> actions [N, ...], as returned by `Agent.controller`."""
ENSEMBLES = 16
BEFORE, DURING, AFTER = 2_000, 8_000, 2_000
SETTLED = 2_000
"""Steps of control before its effect is measured."""
TRACES = 40


class Record(NamedTuple):
    """Signals of E ensembles over T actions; control is off in the first and last part."""

    x: np.ndarray  # [T, E] mean of the neurons' signal
    kick: np.ndarray  # [T, E]
    traces: np.ndarray  # [T, TRACES] single neurons of the first ensemble
    neuron_std_during: np.ndarray  # [E] over time, mean over neurons


class ControllerMetrics(NamedTuple):
    """The reported metrics of one controller, each [E]."""

    suppression: np.ndarray  # std of X before / std of X under control
    neuron_std: np.ndarray  # of a single neuron under control
    synchrony: (
        np.ndarray
    )  # std of X over a single neuron's: 1 if synchronous, 1/sqrt(N) if independent
    beta_before: np.ndarray  # power of X, 13-30 Hz
    beta_during: np.ndarray
    energy: np.ndarray  # sum of |kick| per 1000 actions
    squared: np.ndarray  # sum of kick^2 per 1000 actions
    charge: np.ndarray  # sum of kicks per 1000 actions


def baselines(task: Oscillator) -> dict[str, Control]:
    """Return the baseline controllers: (key, state of one ensemble) -> kick."""
    scale = task.high.action_scale

    def linear(key: Key, state: OscillatorState) -> jax.Array:
        x, y = task.model.fields(state.neurons)
        kick = task.model.feedback(x, y, state.x_history, state.y_history)
        return jnp.clip(kick, -scale, scale)

    return {
        "no control": lambda key, state: jnp.zeros(()),
        "constant": lambda key, state: jnp.float32(-0.5 * scale),
        "random": lambda key, state: scale * jax.random.uniform(key, minval=-1.0, maxval=1.0),
        "linear feedback": linear,
    }


def run(task: Oscillator, control: Control, seed: int) -> Record:
    """Simulate E ensembles under `control`, (key, states of E ensembles) -> kicks [E]."""
    key, start_key = jax.random.split(jax.random.key(seed))
    signal = jax.vmap(task.model.signal)

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        states, during = carry
        t, key = inputs
        act_key, step_key = jax.random.split(key)
        on = (t >= BEFORE) & (t < BEFORE + DURING)
        kick = jnp.where(on, control(act_key, states), 0.0)
        keys = jax.random.split(step_key, ENSEMBLES)
        states, _ = jax.vmap(task.advance)(keys, states, kick)
        values = signal(states.neurons)
        settled = on & (t >= BEFORE + SETTLED)
        during = _accumulate(during, values, settled)
        x = jax.vmap(lambda neurons: task.model.fields(neurons)[0])(states.neurons)
        return (states, during), (x, states.kick, values[0, :TRACES])

    @jax.jit
    def all_steps(key: Key, start_key: Key) -> Any:
        states, _ = jax.vmap(task.reset)(jax.random.split(start_key, ENSEMBLES))
        zeros = jnp.zeros((3, ENSEMBLES, task.num_neurons))
        total = BEFORE + DURING + AFTER
        inputs = (jnp.arange(total), jax.random.split(key, total))
        (_, during), outputs = jax.lax.scan(step, (states, zeros), inputs)
        return *outputs, _neuron_std(during)

    return Record(*jax.device_get(all_steps(key, start_key)))


def _accumulate(sums: Any, values: jax.Array, when: jax.Array) -> Any:
    new = jnp.stack([jnp.ones_like(values), values, jnp.square(values)])
    return sums + jnp.where(when, new, 0.0)


def _neuron_std(sums: Any) -> Any:
    count, total, squares = sums
    mean = total / count
    return jnp.mean(jnp.sqrt(jnp.maximum(squares / count - jnp.square(mean), 0.0)), axis=-1)


def spectrum(x: np.ndarray, action_seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Welch's power spectral density of x [T, E]: (frequencies in Hz, power [F, E])."""
    from scipy import signal

    segment = min(1024, len(x))
    return signal.welch(x, 1.0 / action_seconds, nperseg=segment, axis=0)


def controller_metrics(task: Oscillator, record: Record) -> ControllerMetrics:
    """Compute the metrics of one controller."""
    before, during = _before(record.x), _during(record.x)
    seconds = task.model.step_seconds * len(task.pulse)
    kicks = record.kick[BEFORE : BEFORE + DURING]
    std = during.std(axis=0)

    def beta(x: np.ndarray) -> np.ndarray:
        frequencies, power = spectrum(x, seconds)
        inside = (frequencies >= BETA_BAND[0]) & (frequencies <= BETA_BAND[1])
        return power[inside].sum(axis=0) * (frequencies[1] - frequencies[0])

    return ControllerMetrics(
        suppression=before.std(axis=0) / np.maximum(std, 1e-12),
        neuron_std=record.neuron_std_during,
        synchrony=std / np.maximum(record.neuron_std_during, 1e-12),
        beta_before=beta(before),
        beta_during=beta(during),
        energy=1000.0 * np.abs(kicks).mean(axis=0),
        squared=1000.0 * np.square(kicks).mean(axis=0),
        charge=1000.0 * kicks.mean(axis=0),
    )


def _before(x: np.ndarray) -> np.ndarray:
    return x[:BEFORE]


def _during(x: np.ndarray) -> np.ndarray:
    return x[BEFORE + SETTLED : BEFORE + DURING]


def kicks_of(act: Act) -> Control:
    """Return a policy, (key, obs [E, H]) -> action [E, 1], as a controller of E ensembles."""

    def control(key: Key, states: OscillatorState) -> jax.Array:
        action = jnp.clip(act(key, states.y_history)[:, 0], -1.0, 1.0)
        return states.params.action_scale * action

    return control


def measure(task: Any, act: Act, seed: int) -> ControllerMetrics:
    """Compute the metrics of a policy on new ensembles; `task` is from `registry.make_task`."""
    task = innermost(task)
    return controller_metrics(task, run(task, kicks_of(act), seed))


def innermost(task: Any) -> Oscillator:
    """Return the task inside its wrappers."""
    while not isinstance(task, Oscillator):
        task = task.task
    return task


def report(task: Any, act: Act, seed: int, path: str) -> str:
    """Return a table of a policy and the baselines; plot them into the image file `path`."""
    task = innermost(task)

    def batched(control: Control) -> Control:
        return lambda key, states: jax.vmap(control)(jax.random.split(key, ENSEMBLES), states)

    controls = {"agent": kicks_of(act), **{k: batched(f) for k, f in baselines(task).items()}}
    records = {name: run(task, control, seed) for name, control in controls.items()}
    rows = {name: controller_metrics(task, record) for name, record in records.items()}
    draw(task, records, rows, path)
    return table(rows)


def table(rows: dict[str, ControllerMetrics]) -> str:
    """Return a table with one line per controller, and the meaning of its columns."""
    lines = [
        f"means over {ENSEMBLES} ensembles, {SETTLED} to {DURING} actions after control starts",
        f"{'':16}{'suppression':>12}{'sqrt':>9}{'worst':>8}{'neuron std':>11}{'synchrony':>10}"
        f"{'beta dB':>8}{'sum |a|':>9}{'sum a^2':>9}{'net charge':>11}",
    ]
    for name, row in rows.items():
        ratio = row.suppression.mean()
        decibel = 10 * np.log10(np.maximum(row.beta_during, 1e-20) / row.beta_before).mean()
        lines.append(
            f"{name:16}{ratio:12.1f}{np.sqrt(ratio):9.2f}{row.suppression.min():8.1f}"
            f"{row.neuron_std.mean():11.3f}{row.synchrony.mean():10.3f}{decibel:8.1f}"
            f"{row.energy.mean():9.2f}{row.squared.mean():9.3f}{row.charge.mean():11.2f}"
        )
    lines += [
        "suppression: std of the mean field before / under control; sqrt: its square root; worst: "
        "of the worst ensemble",
        "neuron std: std of a single neuron's signal over time. Near 0, the neurons are silenced "
        "(amplitude death), not desynchronised.",
        "synchrony: std of the mean field / neuron std, 1 if all neurons are synchronous",
        "beta dB: change of the mean field's power between 13 and 30 Hz, in decibels",
        "sum |a|, sum a^2, net charge: sums of |stimulation|, its square, and the stimulation, per "
        "1000 actions",
    ]
    return "\n".join(lines)


def draw(
    task: Oscillator, records: dict[str, Record], rows: dict[str, ControllerMetrics], path: str
) -> None:
    """Plot the mean field, single neurons, spectra and suppression into one image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = records["agent"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    (field, spectra), (neurons, bars) = figure.subplots(2, 2, width_ratios=(2, 1))
    _draw_field(field, record)
    _draw_neurons(neurons, record)
    _draw_spectra(spectra, record, task.model.step_seconds * len(task.pulse))
    _draw_suppression(bars, rows)
    figure.savefig(path, dpi=110)


def _draw_field(axes: Any, record: Record) -> None:
    """Plot the mean field of the first ensemble."""
    axes.plot(record.x[:, 0], linewidth=0.6, color="tab:blue")
    axes.axvspan(BEFORE, BEFORE + DURING, color="tab:green", alpha=0.12, label="control on")
    axes.set(title="Mean field of one ensemble", xlabel="actions", ylabel="X")
    axes.legend(loc="upper right")


def _draw_neurons(axes: Any, record: Record) -> None:
    """Plot the signals of single neurons shortly before and after control starts."""
    window = slice(BEFORE - 600, BEFORE + 1800)
    axes.imshow(
        record.traces[window].T,
        aspect="auto",
        cmap="magma",
        extent=(window.start, window.stop, record.traces.shape[1], 0),
        interpolation="nearest",
    )
    axes.axvline(BEFORE, color="tab:green")
    axes.set(
        title="Single neurons (bright: high x); control starts at the line",
        xlabel="actions",
        ylabel="neuron",
    )


def _draw_spectra(axes: Any, record: Record, action_seconds: float) -> None:
    """Plot the power of the mean field before and under control."""
    for part, label, color in (
        (_before(record.x), "before", "tab:red"),
        (_during(record.x), "under control", "tab:blue"),
    ):
        frequencies, power = spectrum(part, action_seconds)
        shown = (frequencies > 0) & (frequencies <= 100)
        axes.semilogy(frequencies[shown], power.mean(axis=1)[shown], label=label, color=color)
    axes.axvspan(*BETA_BAND, color="grey", alpha=0.2, label="beta band")
    axes.set(title="Power of the mean field", xlabel="Hz", ylabel="X² per Hz", xlim=(0, 100))
    axes.legend()


def _draw_suppression(axes: Any, rows: dict[str, ControllerMetrics]) -> None:
    """Plot the suppression of every controller."""
    names = list(rows)
    axes.barh(names, [rows[n].suppression.mean() for n in names], color="tab:blue")
    for i, n in enumerate(names):
        axes.text(
            rows[n].suppression.mean(),
            i,
            f" neuron std {rows[n].neuron_std.mean():.2f}",
            va="center",
        )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.1, 1e6)
    axes.set(title="Suppression of the mean field", xlabel="std before / std under control")
