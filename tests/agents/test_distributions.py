"""Action distributions against scipy, quadrature and large samples."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from purejaxppo import spaces
from purejaxppo.agents.networks import distributions

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
MEAN = RNG.normal(size=(5, 3)).astype(np.float32)
LOG_STD = RNG.uniform(-1, 0.7, size=(5, 3)).astype(np.float32)
NORMAL = jnp.concatenate([MEAN, LOG_STD], axis=-1)


class TestAgainstScipy(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_categorical_equals_scipy(self):
        dist = distributions.categorical(4)
        probs = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
        for action in range(4):
            np.testing.assert_allclose(
                self.variant(dist.log_prob)(LOGITS, jnp.full(6, action)),
                [stats.multinomial.logpmf(np.eye(4)[action], 1, p / p.sum()) for p in probs],
                rtol=1e-4,
            )
        np.testing.assert_allclose(
            self.variant(dist.entropy)(LOGITS), stats.entropy(probs, axis=-1), rtol=1e-5
        )
        np.testing.assert_array_equal(self.variant(dist.mode)(LOGITS), probs.argmax(-1))

    @chex.all_variants(with_pmap=False)
    def test_categorical_with_a_masked_choice_has_finite_entropy_and_gradient(self):
        dist = distributions.categorical(3)
        logits = jnp.array([0.0, 0.0, -1e9])
        np.testing.assert_allclose(self.variant(dist.entropy)(logits), np.log(2), rtol=1e-6)
        assert np.all(np.isfinite(self.variant(jax.grad(dist.entropy))(logits)))

    @chex.all_variants(with_pmap=False)
    def test_gaussian_equals_scipy(self):
        dist = distributions.gaussian(3)
        action = RNG.normal(size=(5, 3))
        reference = stats.norm(MEAN, np.exp(LOG_STD))
        np.testing.assert_allclose(
            self.variant(dist.log_prob)(NORMAL, action), reference.logpdf(action).sum(-1), rtol=1e-4
        )
        np.testing.assert_allclose(
            self.variant(dist.entropy)(NORMAL), reference.entropy().sum(-1), rtol=1e-4
        )
        np.testing.assert_array_equal(self.variant(dist.mode)(NORMAL), MEAN)

    @chex.all_variants(with_pmap=False)
    def test_tanh_gaussian_log_prob_equals_the_change_of_variables(self):
        dist = distributions.tanh_gaussian(3)
        u = RNG.normal(size=(5, 3))
        density = stats.norm(MEAN, np.exp(LOG_STD)).logpdf(u) - np.log(1 - np.tanh(u) ** 2)
        np.testing.assert_allclose(
            self.variant(dist.log_prob)(NORMAL, u), density.sum(-1), rtol=1e-4
        )
        np.testing.assert_allclose(self.variant(dist.to_env)(u), np.tanh(u), rtol=1e-5)

    @chex.all_variants(with_pmap=False)
    def test_tanh_gaussian_density_integrates_to_one(self):
        dist = distributions.tanh_gaussian(1)
        action = np.linspace(-1, 1, 20001)[1:-1]
        params = jnp.tile(jnp.array([0.3, -0.5]), (len(action), 1))
        density = np.exp(self.variant(dist.log_prob)(params, np.arctanh(action)[:, None]))
        np.testing.assert_allclose(np.trapezoid(density, action), 1.0, atol=1e-3)

    @chex.all_variants(with_pmap=False)
    def test_tanh_gaussian_log_prob_stays_finite_far_from_zero(self):
        dist = distributions.tanh_gaussian(1)
        params = jnp.array([40.0, 0.0])
        value, gradient = self.variant(jax.value_and_grad(dist.log_prob))(params, jnp.array([40.0]))
        # log N(40 | 40, 1) - log(1 - tanh²40), and 1 - tanh²u = 4 exp(-2u) so far out.
        np.testing.assert_allclose(value, -0.5 * np.log(2 * np.pi) + 80 - np.log(4), rtol=1e-6)
        assert np.all(np.isfinite(gradient))


def test_categorical_samples_follow_their_probabilities(key):
    dist = distributions.categorical(4)
    samples = dist.sample(jnp.tile(LOGITS[:1], (20000, 1)), key)
    counts = np.bincount(np.asarray(samples), minlength=4)
    probs = np.exp(LOGITS[0].astype(np.float64))
    assert samples.dtype == jnp.int32
    assert stats.chisquare(counts, 20000 * probs / probs.sum()).pvalue > 1e-3


def test_gaussian_samples_follow_their_mean_and_standard_deviation(key):
    dist = distributions.gaussian(3)
    samples = np.asarray(dist.sample(jnp.tile(NORMAL[:1], (20000, 1)), key))
    for i in range(3):
        law = stats.norm(MEAN[0, i], np.exp(LOG_STD[0, i]))
        assert stats.kstest(samples[:, i], law.cdf).pvalue > 1e-3
    assert np.all(np.abs(np.corrcoef(samples.T) - np.eye(3)) < 0.03)


@pytest.mark.parametrize(
    ("std", "error", "tolerance"),
    [
        (0.3, 0, 1e-4),
        (1, 0, 1e-4),
        (2, -3e-3, 5e-4),
        (3, -0.02, 5e-3),
        (4, -0.06, 5e-3),
        (10, -0.35, 5e-3),
    ],
)
def test_the_error_of_the_tanh_gaussian_entropy_is_the_documented_one(std, error, tolerance):
    def integrand(z):  # of E[log(1 - tanh² u)], u = std z
        u = abs(std * z)
        return stats.norm.pdf(z) * 2 * (np.log(2) - u - np.log1p(np.exp(-2 * u)))

    expectation = 2 * integrate.quad(integrand, 0, 12, limit=500)[0]
    params = jnp.array([0.0, np.log(std)], jnp.float32)
    entropy = distributions.tanh_gaussian(1).entropy(params)
    exact = stats.norm(scale=std).entropy() + expectation
    assert entropy - exact == pytest.approx(error, abs=tolerance)


def test_tanh_gaussian_entropy_equals_a_large_sample_estimate(key):
    dist = distributions.tanh_gaussian(3)
    params = jnp.broadcast_to(NORMAL, (200_000, 5, 6))
    log_prob = np.asarray(dist.log_prob(params, dist.sample(params, key)), np.float64)
    error = log_prob.std(0) / np.sqrt(len(log_prob))
    assert np.all(np.abs(dist.entropy(NORMAL) + log_prob.mean(0)) < 5 * error)


def test_log_probs_and_entropies_of_independent_choices_add_up():
    nvec = (2, 3, 4)
    dist = distributions.for_space(spaces.MultiDiscrete(nvec))
    logits = RNG.normal(size=(7, 9)).astype(np.float32)
    action = np.stack([RNG.integers(0, n, 7) for n in nvec], -1)
    parts = [logits[:, :2], logits[:, 2:5], logits[:, 5:]]
    assert dist.num_params == 9
    np.testing.assert_allclose(
        dist.log_prob(logits, action),
        sum(
            distributions.categorical(n).log_prob(part, action[:, i])
            for i, (n, part) in enumerate(zip(nvec, parts, strict=True))
        ),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        dist.entropy(logits),
        sum(stats.entropy(np.exp(part), axis=-1) for part in parts),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(
        dist.mode(logits), np.stack([part.argmax(-1) for part in parts], -1)
    )


def test_parts_of_a_multidiscrete_action_are_drawn_independently(key):
    dist = distributions.for_space(spaces.MultiDiscrete((2, 2)))
    samples = np.asarray(dist.sample(jnp.zeros((20000, 4)), key))
    table = np.histogram2d(samples[:, 0], samples[:, 1], bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.fixture
def mixed():
    """Return a space of a discrete and a continuous part."""
    return spaces.Dict.of({"move": spaces.Box((2,), -1.0, 1.0), "button": spaces.Discrete(3)})


def test_dict_actions_combine_discrete_and_continuous_parts(mixed, key):
    dist = distributions.for_space(mixed, "tanh_gaussian")
    params = jnp.asarray(RNG.normal(size=(4, 7)), jnp.float32)
    action = dist.sample(params, key)
    assert action["button"].shape == (4,) and action["button"].dtype == jnp.int32
    assert action["move"].shape == (4, 2) and action["move"].dtype == jnp.float32
    choice, move = distributions.categorical(3), distributions.tanh_gaussian(2)
    np.testing.assert_allclose(
        dist.log_prob(params, action),
        choice.log_prob(params[:, :3], action["button"])
        + move.log_prob(params[:, 3:], action["move"]),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        dist.entropy(params),
        choice.entropy(params[:, :3]) + move.entropy(params[:, 3:]),
        rtol=1e-5,
    )
    env_action = dist.to_env(action)
    np.testing.assert_array_equal(env_action["move"], jnp.tanh(action["move"]))
    np.testing.assert_array_equal(env_action["button"], action["button"])


def test_parameter_kinds_are_in_the_order_of_the_parameters(mixed):
    kinds = ["logit"] * 3 + ["other"] * 2 + ["log_std"] * 2
    assert distributions.parameter_kinds(mixed).tolist() == kinds


def test_continuous_actions_with_several_axes_are_rejected():
    with pytest.raises(ValueError, match=r"one axis.*\(2, 2\)"):
        distributions.for_space(spaces.Box((2, 2)))


def test_the_mode_of_a_beta_is_its_peak_or_the_middle_of_a_uniform_one():
    dist = distributions.beta(1)

    def mode(a, b):
        """Return the mode for concentrations 1 + a and 1 + b."""
        params = np.log(np.expm1(np.array([a, b], np.float64)))
        return dist.mode(jnp.asarray(params, jnp.float32))[0]

    np.testing.assert_allclose(mode(1.0, 3.0), 0.25, rtol=1e-5)
    np.testing.assert_allclose(mode(1e-3, 3e-3), 0.25, rtol=1e-3)
    for low in (-17.0, -40.0, -200.0):  # softplus is 4e-8, 4e-18 and 0
        np.testing.assert_allclose(dist.mode(jnp.full(2, low)), 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("dist", "action"),
    [
        (distributions.categorical(4), jnp.zeros((3, 1), int)),
        (distributions.categorical(4), jnp.zeros(3)),
        (distributions.categorical(5), jnp.zeros(3, int)),
        (distributions.gaussian(2), jnp.zeros((3, 1))),
        (distributions.tanh_gaussian(2), jnp.zeros(2)),
        (distributions.beta(2), jnp.full((4, 2), 0.5)),
    ],
)
def test_actions_and_parameters_of_wrong_shapes_are_rejected(dist, action):
    with pytest.raises(AssertionError):
        dist.log_prob(jnp.zeros((3, 4)), action)
