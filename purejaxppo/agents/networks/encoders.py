"""Observation encoders: dense layers, convolutions, and concatenated parts of a `Dict`."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from purejaxppo import spaces
from purejaxppo.agents.networks import convolutions, products
from purejaxppo.aliases import Array, Key, Obs
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.parallel import platforms

ACTIVATIONS = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "swish": nn.swish,
    "gelu": nn.gelu,
    "elu": nn.elu,
}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of Mnih et al. 2015, https://doi.org/10.1038/nature14236."""
NIPS = ((16, 8, 4), (32, 4, 2))
"""Channels, kernel and stride of the smaller network of Mnih et al. 2013,
https://arxiv.org/abs/1312.5602."""
SMALL = ((16, 3, 1),)
"""One convolution, from Young & Tian 2019 (MinAtar), https://arxiv.org/abs/1903.03176."""
CNN_LAYERS = {"cnn_nature": NATURE, "cnn_nips": NIPS, "cnn_small": SMALL}
IMPALA = (16, 32, 32)
"""Channels of the blocks of the large network of Espeholt et al. 2018,
https://arxiv.org/abs/1802.01561, fig. 3."""


Initializer = Callable[..., Array]
"""(key, shape, dtype=float32) -> initial weights of that shape."""


def orthogonal(scale: float) -> Initializer:
    """Return an orthogonal initialiser that is safe to vmap.

    JAX's batched QR can deadlock on a CPU. There, vmapped keys are processed one after the other.

    Reference: Saxe et al. 2013, https://arxiv.org/abs/1312.6120.
    """
    initializer = nn.initializers.orthogonal(scale)

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        if platforms.is_accelerated():
            return initializer(key, shape, dtype)
        sequential = jax.custom_batching.sequential_vmap(lambda key: initializer(key, shape, dtype))
        return sequential(key)

    return init


def dense(
    features: int, scale: float, name: str, initializer: str, dtype: str = "float32"
) -> nn.Dense:
    """Return a dense layer with zero biases.

    It computes in `dtype`; its parameters are float32.

    Args:
        features: number of outputs.
        scale: gain of orthogonal weights; 0 for weights of 0.
        name: name of the layer.
        initializer: `network.initializer`.
        dtype: dtype of the computation.
    """
    kernel = orthogonal(scale) if initializer == "orthogonal" else nn.initializers.lecun_normal()
    if not scale:
        kernel = nn.initializers.zeros
    return nn.Dense(
        features,
        dtype=jnp.dtype(dtype),
        kernel_init=kernel,
        dot_general=products.dot_general,
        name=name,
    )


class Conv(nn.Module):
    """A convolution with the dtype of x, in the layout of the platform's form."""

    features: int
    kernel: int
    stride: int = 1
    padding: str = "VALID"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Convolve C channels to `features` channels."""
        form = convolutions.default()
        shape = (self.kernel, self.kernel, x.shape[form.channel_axis], self.features)
        kernel = self.param("kernel", orthogonal(np.sqrt(2)), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
        return form.convolve(x, kernel, bias, self.stride, self.padding)


class ConvResidual(nn.Module):
    """x + f(x), where f is a relu and a 3 x 3 convolution, twice."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return x + f(x), with the number of channels of x."""
        channels = x.shape[convolutions.default().channel_axis]
        y = x
        for i in range(2):
            y = Conv(channels, 3, padding="SAME", name=f"conv_{i}")(nn.relu(y))
        return x + y


class Convolutions(nn.Module):
    """Images to features: divide bytes by 255, convolve, and flatten."""

    encoder: str
    channels_first: bool
    dtype: str = "float32"
    is_bytes: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map images [..., H, W, C] or [..., C, H, W] to features [..., F]."""
        form = convolutions.default()
        batch = x.shape[:-3]
        x = form.enter(x.reshape((-1, *x.shape[-3:])), self.channels_first)
        x = x.astype(self.dtype)
        if self.is_bytes:
            x = x * (1 / 255)
        x = self.impala(x) if self.encoder == "cnn_impala" else self.conv_layers(x)
        return form.leave(x).reshape((*batch, -1))

    def conv_layers(self, x: Array) -> Array:
        """Apply convolutions, each with a relu."""
        for i, (features, kernel, stride) in enumerate(CNN_LAYERS[self.encoder]):
            x = nn.relu(Conv(features, kernel, stride, name=f"conv_{i}")(x))
        return x

    def impala(self, x: Array) -> Array:
        """Apply blocks of a convolution, a max pooling of stride 2, and two residual blocks."""
        for i, channels in enumerate(IMPALA):
            x = Conv(channels, 3, padding="SAME", name=f"conv_{i}")(x)
            x = convolutions.default().max_pool(x)
            for j in range(2):
                x = ConvResidual(name=f"residual_{i}_{j}")(x)
        return nn.relu(x)


def image_shape(space: spaces.Box, channels: str) -> tuple[int, int, int, bool]:
    """Return (height, width, channels, channels_first) of an image space.

    Args:
        space: an image space.
        channels: auto, first or last. With auto, the first axis is the channels if it is smaller
            than both others. A small board of many planes, [4, 4, 31], has its channels last.
    """
    smallest_first = space.shape[0] < min(space.shape[1:])
    first = channels == "first" or (channels == "auto" and smallest_first)
    if first:
        return space.shape[1], space.shape[2], space.shape[0], True
    return space.shape[0], space.shape[1], space.shape[2], False


def is_image(space: spaces.Space) -> bool:
    """Return True for an image space, a Box with three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3


class Encoder(nn.Module):
    """Map an observation to one feature vector. Parts of a `Dict` are encoded and concatenated.

    `space` is the result of `spaces.network_input`.
    """

    space: spaces.Space
    config: NetworkConfig

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        """Map observations [..., *shape] to features [..., F]."""
        return self.encode(obs, self.space, "obs")

    def encode(self, obs: Obs, space: spaces.Space, name: str) -> Array:
        """Return the features of one part."""
        match space:
            case spaces.Dict(parts):
                names = {key: f"{name}_{key}" for key, _ in parts}
                return jnp.concatenate(
                    [
                        self.part_layers(self.encode(obs[key], part, names[key]), names[key])
                        for key, part in parts
                    ],
                    axis=-1,
                )
            case spaces.Discrete(n):
                return jax.nn.one_hot(obs, n)
            case spaces.MultiDiscrete(nvec) if len(set(nvec)) == 1:  # may have hundreds of ids
                return jax.nn.one_hot(obs, nvec[0]).reshape((*obs.shape[:-1], -1))
            case spaces.MultiDiscrete(nvec):
                return jnp.concatenate(
                    [jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(nvec)], axis=-1
                )
        encoder = image_encoder(space, self.config)
        if encoder:
            first, dtype = image_shape(space, self.config.channels)[3], self.config.compute_dtype
            return Convolutions(encoder, first, dtype, space.is_bytes, name=name)(obs)
        x: Array = obs.astype(jnp.float32) / (255.0 if space.is_bytes else 1.0)
        return x.reshape((*x.shape[: x.ndim - len(space.shape)], -1))

    def part_layers(self, x: Array, name: str) -> Array:
        """Pass the features of one part through separate dense layers."""
        config = self.config
        for i, width in enumerate(config.input_hidden):
            layer = f"{name}_dense_{i}"
            x = dense(width, np.sqrt(2), layer, config.initializer, config.compute_dtype)(x)
            x = ACTIVATIONS[config.activation](x)
        return x


def image_encoder(space: spaces.Box, config: NetworkConfig) -> str:
    """Return the encoder of a space, with `auto` resolved; "" for vectors and flattened images.

    Raises:
        ValueError: the kernels of the chosen encoder are larger than the image.
    """
    if not is_image(space) or config.encoder == "mlp":
        return ""
    height, width, _, _ = image_shape(space, config.channels)
    shorter_side = min(height, width)
    if config.encoder == "auto":
        candidates = (
            name
            for name in ("cnn_nature", "cnn_small")
            if shorter_side >= smallest(CNN_LAYERS[name])
        )
        return next(candidates, "")
    min_side = smallest(CNN_LAYERS.get(config.encoder, ()))
    if shorter_side < min_side:
        alternative = "cnn_small" if shorter_side >= smallest(SMALL) else "mlp"
        raise ValueError(
            f"network.encoder = {config.encoder} needs images of at least {min_side} x {min_side} "
            f"pixels, but these are {height} x {width}. Use {alternative}."
        )
    return config.encoder


def has_images(space: spaces.Space, config: NetworkConfig) -> bool:
    """Return True if convolutions read a space, or a part of it."""
    if isinstance(space, spaces.Dict):
        return any(has_images(part, config) for _, part in space.spaces)
    return isinstance(space, spaces.Box) and bool(image_encoder(space, config))


def smallest(layers: Sequence[tuple[int, int, int]]) -> int:
    """Return the smallest image width for which these convolutions leave one pixel.

    Args:
        layers: (channels, kernel, stride) of each convolution.
    """
    width = 1
    for _, kernel, stride in reversed(layers):
        width = (width - 1) * stride + kernel
    return width
