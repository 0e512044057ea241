"""Networks: convolutions, encoders, torsos, heads and their initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents.networks import actor_critic, build, convolutions, encoders
from purejaxppo.config.schema import NetworkConfig

CHOICE = spaces.Discrete(3)
VECTOR = spaces.Box((5,))
IMAGE = spaces.Box((10, 10, 3), 0, 255, "uint8")


def make(observation=VECTOR, action=CHOICE, **config):
    config = NetworkConfig(**{"hidden": (16,), **config})
    network = build.make_network(observation, action, config)
    return network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply))


def forward(network, params, obs):
    start = jnp.zeros(jax.tree.leaves(obs)[0].shape[:1], bool)
    return network.apply(params, (), obs, start)[1:3]


def images(key, shape):
    return jax.random.randint(key, shape, 0, 256, jnp.int32).astype(jnp.uint8)


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        ("cnn_small", (2, 10, 9, 4)),
        ("cnn_nips", (2, 21, 24, 3)),
        ("cnn_nature", (2, 40, 37, 2)),
        pytest.param("cnn_impala", (2, 13, 8, 3), marks=pytest.mark.full),
    ],
)
def test_both_convolution_forms_have_the_same_parameters_outputs_and_gradients(
    encoder, shape, key, monkeypatch
):
    x = jax.random.normal(key, shape)
    results = []
    for form in (convolutions.BATCH_LAST, convolutions.LAX):
        monkeypatch.setattr(convolutions, "default", lambda form=form: form)
        module = encoders.Convolutions(encoder, False)

        def loss(params, x, module=module):
            features = module.apply(params, x)
            return jnp.sum(jnp.sin(features)), features

        params = jax.jit(module.init)(key, x)
        gradient = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
        results.append((params, *gradient(params, x)))
    ours, lax = results
    jax.tree.map(np.testing.assert_array_equal, ours[0], lax[0])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours[1:], lax[1:]
    )


def test_the_impala_encoder_has_fifteen_convolutions_and_halves_the_image_three_times(key):
    network = make(spaces.Box((64, 64, 3), 0, 255, "uint8"), encoder="cnn_impala", torso="shared")
    shapes = jax.eval_shape(network.init, key)["torso"]
    assert len(jax.tree.leaves(shapes["encoder"])) == 2 * 15
    assert shapes["dense_0"]["kernel"].shape == (8 * 8 * 32, 16)


def test_channels_first_equals_channels_last(key):
    last = images(key, (2, 10, 10, 3))
    first = jnp.moveaxis(last, -1, -3)
    net_last = make(IMAGE)
    net_first = make(spaces.Box((3, 10, 10), 0, 255, "uint8"))
    params = net_last.init(key)
    for a, b in zip(
        forward(net_last, params, last), forward(net_first, params, first), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((4, 84, 80), "auto", (84, 80, 4, True)),
        ((84, 80, 4), "auto", (84, 80, 4, False)),
        ((4, 4, 31), "auto", (4, 4, 31, False)),
        ((5, 7, 6), "last", (5, 7, 6, False)),
        ((9, 7, 6), "first", (7, 6, 9, True)),
    ],
)
def test_the_channel_axis_of_an_image_is_found(shape, channels, expected):
    assert encoders.image_shape(spaces.Box(shape), channels) == expected


def test_bytes_are_scaled_to_one_and_floats_are_not(key):
    obs = images(key, (2, 10, 10, 3))
    of_bytes, of_floats = make(IMAGE), make(spaces.Box((10, 10, 3)))
    params = of_bytes.init(key)
    value = forward(of_bytes, params, obs)[1]
    scaled = forward(of_floats, params, obs.astype(jnp.float32) / 255.0)[1]
    unscaled = forward(of_floats, params, obs.astype(jnp.float32))[1]
    np.testing.assert_allclose(value, scaled, rtol=1e-6)
    assert not np.allclose(value, unscaled)


def test_the_encoder_is_chosen_by_size():
    for shape, count in [((84, 84, 4), 3), ((36, 36, 4), 3), ((35, 36, 4), 1), ((3, 3, 4), 1)]:
        shapes = jax.eval_shape(make(spaces.Box(shape, 0, 255, "uint8")).init, jax.random.key(0))
        assert len(jax.tree.leaves(shapes["actor_torso"]["encoder"])) == 2 * count
    flat = jax.eval_shape(make(spaces.Box((2, 9, 1), 0, 255, "uint8")).init, jax.random.key(0))
    assert flat["actor_torso"]["dense_0"]["kernel"].shape[0] == 2 * 9


@pytest.mark.parametrize(
    ("encoder", "size", "least", "other"),
    [
        ("cnn_nature", 35, 36, "cnn_small"),
        ("cnn_nips", 19, 20, "cnn_small"),
        ("cnn_small", 2, 3, "mlp"),
    ],
)
def test_images_too_small_for_the_encoder_are_rejected(encoder, size, least, other):
    message = f"{encoder} needs images of at least {least} x {least} pixels.* Use {other}"
    with pytest.raises(ValueError, match=message):
        make(spaces.Box((size, size, 1), 0, 255, "uint8"), encoder=encoder)
    network = make(spaces.Box((least, least, 1), 0, 255, "uint8"), encoder=encoder, torso="shared")
    kernel = jax.eval_shape(network.init, jax.random.key(0))["torso"]["dense_0"]["kernel"]
    assert kernel.shape[0] == encoders.CNN_LAYERS[encoder][-1][0]  # one pixel is left


def test_separate_torsos_share_nothing_and_a_shared_one_feeds_both(key):
    obs = jax.random.normal(key, (3, 5))
    separate, shared = make(torso="separate"), make(torso="shared")

    def touched(network):
        """Return the names of the parameters with a gradient of the value."""
        params = network.init(key)
        gradient = jax.jit(jax.grad(lambda params: forward(network, params, obs)[1].sum()))
        grads = gradient(params)
        return {name for name, part in grads.items() if any(map(jnp.any, jax.tree.leaves(part)))}

    assert touched(separate) == {"critic_torso", "critic"}
    assert touched(shared) == {"torso", "critic"}


def test_the_critic_may_have_other_layer_widths(key):
    params = make(hidden=(8, 8), critic_hidden=(32,)).init(key)
    assert params["critic"]["kernel"].shape == (32, 1)
    assert params["actor"]["kernel"].shape == (8, 3)


def test_every_part_of_a_dict_observation_is_read(key):
    space = spaces.Dict.of(
        {
            "camera": IMAGE,
            "speed": VECTOR,
            "gear": spaces.Discrete(4),
            "switches": spaces.MultiDiscrete((2, 3)),
        }
    )
    network = make(space)
    params = network.init(key)
    obs = {
        "camera": images(key, (2, 10, 10, 3)),
        "speed": jax.random.normal(key, (2, 5)),
        "gear": jnp.array([0, 1]),
        "switches": jnp.array([[0, 0], [1, 2]]),
    }
    value = forward(network, params, obs)[1]
    assert value.shape == (2, 1)
    for name in obs:
        changed = forward(network, params, {**obs, name: obs[name][::-1]})[1]
        assert not np.allclose(value, changed), name


def test_multidiscrete_observations_are_concatenated_one_hot_vectors():
    encoder = encoders.Encoder(spaces.MultiDiscrete((3, 3)), NetworkConfig())
    expected = [[0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(encoder.apply({}, jnp.array([[1, 2], [0, 1]])), expected)
    unequal = encoders.Encoder(spaces.MultiDiscrete((2, 3)), NetworkConfig())
    np.testing.assert_array_equal(unequal.apply({}, jnp.array([1, 2])), [0, 1, 0, 0, 1])


def test_networks_accept_any_leading_axes(key):
    network = make(IMAGE)
    params = network.init(key)
    obs = images(key, (3, 2, 10, 10, 3))
    whole = forward(network, params, obs)
    for i in range(3):
        for a, b in zip(whole, forward(network, params, obs[i]), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("std", ["independent", "dependent"])
def test_the_initial_policy_has_small_means_and_the_configured_standard_deviation(std, key):
    network = make(action=spaces.Box((2,), -1.0, 1.0), std=std, init_std=0.5)
    obs = jax.random.normal(key, (100, 5))
    params, _ = forward(network, network.init(key), obs)
    mean, log_std = np.split(np.asarray(params), 2, axis=-1)
    assert 0 < np.abs(mean).max() < 0.1
    np.testing.assert_allclose(np.exp(log_std), 0.5, rtol=0.1)


def test_the_initial_discrete_policy_is_nearly_uniform(key):
    network = make()
    logits, _ = forward(network, network.init(key), jax.random.normal(key, (100, 5)))
    assert 0 < np.abs(logits).max() < 0.1


def test_the_standard_deviation_stays_within_its_limits(key):
    obs = jax.random.normal(key, (50, 5))
    limits = {"min_std": 0.1, "max_std": 2.0, "action": spaces.Box((2,), -1.0, 1.0)}
    independent = make(**limits)
    params = independent.init(key)
    for raw, std in [(-100.0, 0.1), (100.0, 2.0)]:
        out, _ = forward(independent, params | {"log_std": jnp.full(2, raw)}, obs)
        np.testing.assert_allclose(np.exp(out[:, 2:]), std, rtol=1e-5)
    dependent = make(std="dependent", **limits)
    params = dependent.init(key)
    wild = jax.tree.map(lambda x: 1000.0 * x, params["actor"])
    out, _ = forward(dependent, params | {"actor": wild}, obs)
    assert set(np.round(np.exp(np.unique(out[:, 2:])), 5)) >= {np.float32(0.1), np.float32(2.0)}
    assert np.all((np.exp(out[:, 2:]) > 0.0999) & (np.exp(out[:, 2:]) < 2.0001))
    assert np.abs(out[:, :2]).max() > 2.5  # the means have no limits


def test_a_standard_deviation_at_its_limit_has_its_full_gradient(key):
    limits = {"min_std": 0.1, "max_std": 2.0, "action": spaces.Box((2,), -1.0, 1.0)}
    network, obs = make(**limits), jnp.zeros((1, 5))
    params = network.init(key)
    low, high = network.limits[actor_critic.LOG_STD]

    def total(log_std):
        return jnp.sum(forward(network, params | {"log_std": log_std}, obs)[0])

    np.testing.assert_array_equal(jax.grad(total)(jnp.array([low, high])), 1.0)


def test_a_critic_may_start_at_zero_with_any_initializer(key):
    for initializer in ("orthogonal", "lecun_normal"):
        config = NetworkConfig(hidden=(16,), initializer=initializer)
        network = build.make_network(VECTOR, CHOICE, config, 7, 0.0)
        params = network.init(key)
        assert params["critic"]["kernel"].shape == (16, 7)
        np.testing.assert_array_equal(params["critic"]["kernel"], 0.0)
        assert np.abs(params["actor"]["kernel"]).min() > 0


def test_parameters_of_mixed_actions_are_in_the_order_of_their_distribution(key):
    action = spaces.Dict.of({"a": spaces.Box((2,), -1.0, 1.0), "b": spaces.Discrete(3)})
    network = make(action=action, init_std=0.5)
    params = network.init(key) | {
        "log_std": jnp.log(jnp.array([0.2, 0.3])),
        "actor": {"kernel": jnp.zeros((16, 5)), "bias": jnp.arange(1.0, 6.0)},
    }
    out, _ = forward(network, params, jnp.zeros((1, 5)))
    # Two means, their log deviations, then three logits.
    np.testing.assert_allclose(out[0], [1, 2, np.log(0.2), np.log(0.3), 3, 4, 5], rtol=1e-6)


def test_dense_weights_are_orthogonal_with_the_gain_of_their_layer(key):
    params = make(hidden=(16, 16)).init(key)
    kernels = {
        np.sqrt(2): params["actor_torso"]["dense_1"]["kernel"],
        0.01: params["actor"]["kernel"],
        1.0: params["critic"]["kernel"],
    }
    for gain, kernel in kernels.items():
        gram = np.asarray(kernel.T @ kernel)
        np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5 * gain**2)


def test_convolution_kernels_are_orthogonal(key):
    kernel = make(IMAGE).init(key)["actor_torso"]["encoder"]["obs"]["conv_0"]["kernel"]
    flat = np.asarray(kernel).reshape(-1, kernel.shape[-1])
    np.testing.assert_allclose(flat.T @ flat, 2 * np.eye(16), atol=1e-5)


def test_vmapped_init_equals_the_same_keys_one_by_one(key):
    network = make()
    keys = jax.random.split(key, 3)
    together = jax.jit(jax.vmap(network.init))(keys)
    for i in range(3):
        one = network.init(keys[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, one)


def test_layer_norm_adds_its_parameters(key):
    params = make(layer_norm=True).init(key)
    assert params["actor_torso"]["norm_0"]["scale"].shape == (16,)
