"""The oscillator family: physics compared with scipy and theory, the task, the report."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import DOP853, quad
from scipy.optimize import brentq
from support.stepping import begin

import purejaxppo.cli.evaluate as evaluate_command
import purejaxppo.cli.train as train_command
from purejaxppo import Agent, load_config, make_train
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters.oscillator import report as osc_report
from purejaxppo.envs.adapters.oscillator.adapter import FAMILY
from purejaxppo.envs.adapters.oscillator.models import MODELS, runge_kutta
from purejaxppo.envs.adapters.oscillator.task import make
from purejaxppo.envs.families import with_checked_options

FULL = pytest.mark.full


def ensemble(name="bvdp", **options):
    config = EnvConfig(name=f"oscillator/{name}", options=options)
    return make(name, with_checked_options(FAMILY, name, config))


def free_run(task, key, steps, coupling=None, seen=slice(None)):
    """Run without control: first and last state, X [steps], first variable [steps, seen]."""

    @jax.jit
    def run(key):
        params = task.draw_params(key)
        if coupling is not None:
            params = params.replace(coupling=jnp.float32(coupling))
        start_key, current_key = jax.random.split(key)
        first = task.begin(start_key, current_key, params)

        def step(state, _):
            state, _ = task.advance(key, state, jnp.zeros(()))
            return state, (state.x_history[-1], state.neurons[0][seen])

        return first, *jax.lax.scan(step, first, None, steps)

    first, last, (x, neurons) = run(key)
    return first, last, np.asarray(x), np.asarray(neurons)


def scipy_solution(derivative, start, h, steps):
    """Return the first variable [steps, N] after each step of h, to 1e-10."""
    solver = DOP853(derivative, 0.0, start, t_bound=h * steps, rtol=1e-10, atol=1e-10)
    out, t = [], h
    while len(out) < steps:
        solver.step()
        dense = solver.dense_output()
        while len(out) < steps and t <= solver.t + 1e-12:
            out.append(dense(t))
            t = h * (len(out) + 1)
    return np.array(out)


def at_length(*steps):
    """Use a short run in `make test` and a long one in `make test-all`."""
    short, long = steps
    return pytest.mark.parametrize("steps", [short, pytest.param(long, marks=FULL)])


@at_length(200, 1000)
def test_bvdp_follows_scipy(key, steps):
    task = ensemble()
    first, _, x_mean, x = free_run(task, key, steps)
    current = np.asarray(first.current, np.float64)
    n = len(current)

    def derivative(t, s):
        x, y = s[:n], s[n:]
        return np.concatenate(
            [x - x**3 / 3 - y + current + 0.03 * x.mean(), 0.1 * (x - 0.8 * y + 0.7)]
        )

    start = np.concatenate([np.asarray(v, np.float64) for v in first.neurons])
    exact = scipy_solution(derivative, start, 0.2, steps)[:, :n]
    error = np.abs(x - exact)
    assert error[0].max() < 8e-5
    assert error[:500].max() < 2.5e-2  # one neuron in mid-spike
    assert error[:500].mean() < 5e-4
    assert np.abs(x_mean - exact.mean(axis=1)).max() < 2e-4
    assert exact[steps // 2 :].std() > 0.5  # the neurons move


@at_length(100, 500)
def test_hindmarsh_rose_follows_scipy(key, steps):
    task = ensemble("hindmarsh_rose", num_neurons=200)
    first, _, _, x = free_run(task, key, steps)
    current = np.asarray(first.current, np.float64)
    n = len(current)

    def derivative(t, s):
        x, y, z = s[:n], s[n : 2 * n], s[2 * n :]
        return np.concatenate(
            [
                y - x**3 + 3 * x**2 - z + current + 0.2 * x.mean(),
                1 - 5 * x**2 - y,
                0.006 * (4 * (x + 1.56) - z),
            ]
        )

    start = np.concatenate([np.asarray(v, np.float64) for v in first.neurons])
    error = np.abs(x - scipy_solution(derivative, start, 0.1, steps)[:, :n])
    assert error[0].max() < 5e-3
    assert error[:100].max() < 2e-2
    assert error.max() < 6e-2


def test_runge_kutta_has_fourth_order():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        start = tuple(jnp.asarray(rng.uniform(-1, 1, 50)) for _ in range(2))
        current = jnp.asarray(0.6 + 0.1 * rng.normal(size=50))

        def at_10(h):
            neurons = start
            step = jax.jit(
                lambda s: runge_kutta(
                    lambda s: MODELS["bvdp"].derivative(s, current, 0.03, None), s, h
                )
            )
            for _ in range(round(10 / h)):
                neurons = step(neurons)
            return np.asarray(neurons[0])

        exact = at_10(0.0125)
        errors = [np.abs(at_10(h) - exact).max() for h in (0.2, 0.1, 0.05)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all((orders > 3.6) & (orders < 4.4)), (errors, orders)


@FULL
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("coupling", "low", "high"),
    [(0.0, 0.0, 0.1), (0.01, 0.0, 0.1), (0.02, 0.15, 0.6), (0.03, 1.0, 1.2)],
)
def test_strong_coupling_makes_the_mean_field_oscillate(coupling, low, high, key):
    _, _, x, _ = free_run(ensemble(), key, 15_000, coupling)
    assert low < x[5_000:].std() < high


@FULL
@pytest.mark.usefixtures("optimized")
def test_fluctuations_fall_with_the_root_of_the_number_of_neurons(key):
    stds = []
    for n in (250, 4000):
        runs = [
            free_run(ensemble(num_neurons=n), k, 20_000, 0.0, slice(1))[2][10_000:].std()
            for k in jax.random.split(key, 4)
        ]
        stds.append(np.mean(runs))
    assert 3.0 < stds[0] / stds[1] < 5.3  # 4 = sqrt(16)


@FULL
@pytest.mark.usefixtures("optimized")
def test_the_kuramoto_order_parameter_solves_the_self_consistency_equation(key):
    # r = K r int cos^2(t) g(K r sin t) dt for Gaussian g: Strogatz 2000, eq. 4.6
    spread, coupling = 2 * np.pi * 1.0, 20.0

    def g(w):
        return np.exp(-0.5 * (w / spread) ** 2) / (spread * np.sqrt(2 * np.pi))

    def gap(r):
        integral = quad(
            lambda t: np.cos(t) ** 2 * g(coupling * r * np.sin(t)), -np.pi / 2, np.pi / 2
        )[0]
        return coupling * integral - 1.0

    r = brentq(gap, 0.01, 1.0)
    _, _, _, phases = free_run(ensemble("kuramoto", num_neurons=4000), key, 3_000)
    measured = np.abs(np.exp(1j * phases[1500:]).mean(axis=1)).mean()
    assert abs(measured - r) < 0.03
    _, _, _, phases = free_run(ensemble("kuramoto", num_neurons=4000), key, 3_000, 5.0)
    assert np.abs(np.exp(1j * phases[1500:]).mean(axis=1)).mean() < 0.1  # below 10.03, no order


def test_the_order_of_neurons_does_not_matter(key):
    task = ensemble(num_neurons=64)
    state, _ = jax.jit(task.reset)(key)
    order = jax.random.permutation(key, 64)
    shuffled = state.replace(
        neurons=tuple(x[order] for x in state.neurons), current=state.current[order]
    )
    step = jax.jit(task.step)
    a, b = (step(key, s, jnp.array([0.5]))[0] for s in (state, shuffled))
    np.testing.assert_allclose(a.x_history, b.x_history, atol=1e-6)
    np.testing.assert_allclose(a.neurons[0][order], b.neurons[0], atol=1e-6)


def test_vmap_equals_a_loop(key):
    task = ensemble(num_neurons=32, coupling="0.01..0.5")
    keys = jax.random.split(key, 5)
    reset, one_step = jax.jit(task.reset), jax.jit(task.step)
    states, obs = jax.jit(jax.vmap(task.reset))(keys)
    assert len(set(np.asarray(states.params.coupling).tolist())) == 5
    actions = jnp.linspace(-1, 1, 5)[:, None]
    batch = jax.jit(jax.vmap(task.step))(keys, states, actions)[1]
    for i in range(5):
        _, alone = reset(keys[i])
        np.testing.assert_allclose(alone, obs[i], atol=1e-4)
        step = one_step(keys[i], jax.tree.map(lambda x, i=i: x[i], states), actions[i])[1]
        np.testing.assert_allclose(step.reward, batch.reward[i], atol=1e-6)
        np.testing.assert_allclose(step.obs, batch.obs[i], atol=1e-6)


def test_one_step_by_hand(key):
    task = ensemble(num_neurons=10, controlled=0.3)
    state, obs = jax.jit(task.reset)(key)
    after, out = jax.jit(task.step)(key, state, jnp.array([-0.5]))
    x, y = (np.asarray(v, np.float64) for v in state.neurons)
    x[:3] += -0.5 * 0.2  # a kick of scale 0.2 reaches 3 of 10 neurons, before the step
    current = np.asarray(state.current, np.float64)

    def slope(x, y):
        return x - x**3 / 3 - y + current + 0.03 * x.mean(), 0.1 * (x - 0.8 * y + 0.7)

    h = 0.2
    k1 = slope(x, y)
    k2 = slope(x + h / 2 * k1[0], y + h / 2 * k1[1])
    k3 = slope(x + h / 2 * k2[0], y + h / 2 * k2[1])
    k4 = slope(x + h * k3[0], y + h * k3[1])
    x, y = (
        v + h / 6 * (a + 2 * b + 2 * c + d)
        for v, a, b, c, d in zip((x, y), k1, k2, k3, k4, strict=True)
    )
    np.testing.assert_allclose(after.neurons[0], x, atol=1e-5)
    np.testing.assert_allclose(out.obs[:-1], obs[1:])
    np.testing.assert_allclose(out.obs[-1], y.mean(), atol=1e-5)
    window = np.append(np.asarray(state.x_history)[1:], x.mean())
    expected = -((x.mean() - window.mean()) ** 2) - 2 * 0.1
    np.testing.assert_allclose(out.reward, expected, atol=1e-5)
    assert not out.terminated
    assert not out.truncated


@pytest.mark.parametrize(
    ("options", "total", "length"),
    [
        ({"skip": 5}, 0.0, 5),
        ({"pulse": "current", "skip": 4}, 1.0, 4),
        ({"pulse": "current", "skip": 6, "width": 2}, 1.0, 6),
        ({"pulse": "biphasic", "skip": 12, "width": 2, "gap": 1, "ratio": 4}, 0.0, 12),
    ],
)
def test_pulses_have_their_length_and_total_charge(options, total, length, key):
    task = ensemble(num_neurons=8, **options)
    assert len(task.pulse) == length
    assert sum(task.pulse) == pytest.approx(total)
    state, _ = jax.jit(task.reset)(key)
    step = jax.jit(task.step)
    rest, _ = step(key, state, jnp.array([0.0]))
    after, _ = step(key, state, jnp.array([1.0]))
    assert np.abs(after.neurons[0] - rest.neurons[0]).max() > 1e-3
    np.testing.assert_allclose(rest.y_history[:-length], state.y_history[length:])


def test_a_short_current_is_nearly_a_kick(key):
    task, other = ensemble(num_neurons=50), ensemble(num_neurons=50, pulse="current")
    state, _ = jax.jit(task.reset)(key)
    step = jax.jit(task.step)
    kick, rest = (step(key, state, jnp.array([x]))[0] for x in (0.1, 0.0))
    flow = jax.jit(other.step)(key, state, jnp.array([0.1]))[0]
    moved = kick.neurons[0] - rest.neurons[0]
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(flow.neurons[0] - rest.neurons[0], moved, rtol=0.3, atol=3e-3)


def test_noise_and_drift_change_the_state(key):
    task = ensemble(
        num_neurons=16, observation_noise=0.5, action_noise=0.1, coupling_drift=1e-3, skip=2
    )
    state, _ = jax.jit(task.reset)(key)
    drifted = 0.03 + 1e-3 * task.warmup
    np.testing.assert_allclose(state.params.coupling, drifted, rtol=1e-4)
    assert 0.2 < np.std(np.asarray(state.y_history)) < 1.5
    after, _ = jax.jit(task.step)(key, state, jnp.array([0.0]))
    assert after.kick != 0


@pytest.mark.parametrize("name", MODELS)
def test_no_key_is_used_twice(name, key):
    task = ensemble(name, num_neurons=4)

    def run(key):
        keys = jax.random.split(key)
        state, _ = task.reset(keys[0])
        return task.step(keys[1], state, jnp.zeros(1))

    with jax.debug_key_reuse(True):
        jax.jit(run)(key)


def test_the_same_ensemble_keeps_its_currents(key):
    for same in (True, False):
        task = ensemble(num_neurons=16, same_ensemble=same)
        reset = jax.jit(task.reset)
        a, b = (reset(k)[0] for k in jax.random.split(key))
        assert bool(jnp.all(a.current == b.current)) is same
        assert not jnp.all(a.neurons[0] == b.neurons[0])


@pytest.mark.toy
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"couplng": 0.1}, "env.options.couplng: oscillator/bvdp has no such option. Did you mean"),
        ({"coupling": "strong"}, "must be a number or a range such as 0.03..0.5"),
        ({"coupling": "0.5..0.1"}, "low must not be above high"),
        ({"warmup": 10}, "env.options.warmup = 10: must be at least the history of 250"),
        ({"num_neurons": 0}, "must be at least 1"),
        ({"skip": 1.5}, "must be a whole number"),
        ({"pulse": "square"}, "must be one of delta, current, biphasic"),
        ({"pulse": "biphasic", "width": 4, "skip": 6}, "env.options.skip to at least 8"),
        ({"same_ensemble": 3}, "same_ensemble = 3: must be true or false"),
    ],
)
def test_wrong_oscillator_options_get_a_one_sentence_error(options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        ensemble(**options)
    assert "\n" not in str(error.value)


def test_two_of_128_starts_are_drawn_per_rollout_in_turn(key):
    config = EnvConfig(
        name="oscillator/bvdp", options={"num_neurons": 4, "history": 2, "warmup": 2}
    )
    env = registry.make(config, 128)
    assert env.fresh_per_rollout == 2
    state, _ = jax.jit(env.reset)(key)
    first = np.asarray(state.fresh[1])
    refresh = jax.jit(partial(begin, env))
    state = refresh(state)
    changed = np.any(np.asarray(state.fresh[1]) != first, axis=1)
    assert changed.nonzero()[0].tolist() == [0, 1]
    for _ in range(63):
        state = refresh(state)
    assert np.all(np.any(np.asarray(state.fresh[1]) != first, axis=1))


@pytest.fixture(scope="module")
def short_report():
    task = ensemble()
    patch = pytest.MonkeyPatch()
    patch.setattr(osc_report, "ENSEMBLES", 2)
    each = {}
    for name, control in osc_report.baselines(task).items():

        def all_of_them(key, states, control=control):
            return jax.vmap(control)(jax.random.split(key, 2), states)

        record = osc_report.run(task, all_of_them, seed=0)
        each[name] = record, osc_report.controller_metrics(task, record)
    yield task, each
    patch.undo()


@FULL
def test_linear_feedback_desynchronises_the_neurons_and_a_constant_silences_them(short_report):
    _, each = short_report
    row = {name: figures for name, (_, figures) in each.items()}
    assert np.all(np.abs(row["no control"].suppression - 1.0) < 0.15)
    assert row["linear feedback"].suppression.min() > 30
    assert row["linear feedback"].neuron_std.min() > 0.5
    assert row["constant"].neuron_std.max() < 0.01
    assert row["constant"].suppression.min() > 30  # so both metrics are reported
    np.testing.assert_allclose(row["constant"].charge, -100.0, rtol=1e-4)
    assert row["random"].suppression.max() < 5


@FULL
def test_report_metrics_equal_numpy(short_report):
    _, each = short_report
    record, figures = each["linear feedback"]
    before, during = record.x[:2000], record.x[4000:10_000]
    np.testing.assert_allclose(figures.suppression, before.std(0) / during.std(0), rtol=1e-5)
    kicks = record.kick[2000:10_000]
    np.testing.assert_allclose(figures.energy, np.abs(kicks).sum(0) / 8, rtol=1e-4)
    np.testing.assert_allclose(figures.squared, (kicks**2).sum(0) / 8, rtol=1e-4)
    assert np.all(record.kick[:2000] == 0)
    assert np.all(record.kick[10_000:] == 0)
    assert figures.beta_during.max() < 0.01 * figures.beta_before.min()


@FULL
def test_the_spectrum_peaks_at_20_hz(short_report):
    task, each = short_report
    frequencies, power = osc_report.spectrum(each["no control"][0].x, task.model.step_seconds)
    assert abs(frequencies[power.mean(axis=1).argmax()] - 20.0) < 2.0


@FULL
def test_the_report_has_a_table_and_a_plot(short_report, tmp_path):
    task, each = short_report
    records = {"agent": each["linear feedback"][0], **{k: r for k, (r, _) in each.items()}}
    rows = {k: osc_report.controller_metrics(task, r) for k, r in records.items()}
    text = osc_report.table(rows)
    assert len(text.splitlines()) == 2 + 5 + 5
    osc_report.draw(task, records, rows, str(tmp_path / "report.png"))
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", MODELS)
def test_physical_parameters_are_traced(name, key):
    task = ensemble(name, num_neurons=8, warmup=300)
    reset = jax.jit(lambda params: task.begin(key, key, params))
    state = reset(task.draw_params(key))
    for field in dataclasses.fields(state.params):
        changed = state.params.replace(**{field.name: jnp.float32(0.7)})
        assert jnp.all(jnp.isfinite(reset(changed).neurons[0]))
    assert reset._cache_size() == 1


@FULL
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param("network: {rnn: gru}", marks=pytest.mark.slow),
        "env: {obs_indices: [0, 1]}",
        "env: {wrappers: [weaker.py:Weaker]}",
    ],
)
def test_a_policy_with_other_observations_or_actions_or_a_memory_gets_no_report(
    changed, tmp_path, capsys, monkeypatch
):
    section, _, rest = changed.partition(": ")
    sections = {
        "env": "{name: oscillator/bvdp, num_envs: 2, options: {num_neurons: 4, warmup: 250}}",
        "network": "{hidden: [4]}",
    }
    sections[section] = sections[section][:-1] + ", " + rest[1:]
    text = "".join(f"{name}: {value}\n" for name, value in sections.items())
    path, run = tmp_path / "small.yaml", str(tmp_path / "run")
    (tmp_path / "weaker.py").write_text(
        "import purejaxppo as ppo\n\nclass Weaker(ppo.Wrapper):\n"
        "    def step(self, key, state, action):\n"
        "        return self.task.step(key, state, 0.01 * action)\n"
    )
    monkeypatch.chdir(tmp_path)
    path.write_text(text + "ppo: {rollout_length: 4, num_minibatches: 1}\ntotal_timesteps: 8\n")
    flags = ["--eval.num_episodes", "0", "--env.max_episode_steps", "8", "--logging.no_tensorboard"]
    assert train_command.main(["--config", str(path), "--run_dir", run, *flags]) == 0
    assert evaluate_command.main(["--run", run, "--episodes", "1"]) == 0
    assert "no report: it does not support recurrent policies" in capsys.readouterr().out
    assert not (tmp_path / "run" / "report.png").exists()


def test_a_policy_with_a_memory_has_no_controller(make_config):
    config = make_config(network={"hidden": (4,), "rnn": "gru"})
    with pytest.raises(ValueError, match="does not support recurrent policies"):
        Agent(config, None).controller()


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.timeout(600)
def test_ppo_desynchronises_the_neurons(key):
    config = load_config("oscillator.yaml", {"total_timesteps": 1_000_000})
    result = jax.jit(make_train(config))(key)
    agent = Agent(config, result.agent)
    figures = osc_report.measure(registry.make_task(config.env), agent.controller(), seed=7)
    assert figures.suppression.mean() >= 20
    assert figures.neuron_std.min() > 0.5
