"""Simulators that are called through callbacks of the compiled program."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from purejaxppo import spaces
from purejaxppo.aliases import Array, EnvAction, Key
from purejaxppo.envs.host.bridge import Token
from purejaxppo.envs.host.workers.errors import printable
from purejaxppo.envs.step import EnvStep

TOKEN = np.int32(1)
"""The token of every call. Each call needs the token of the last one, so their order is kept."""


def call(
    function: Callable[..., Any],
    result: Any,
    *args: Any,
    on_error: Callable[[Exception], None] | None = None,
) -> Any:
    """Call `function` on the host with NumPy arrays whenever the program reaches this point.

    On a CPU the function reads and writes the buffers of the program, which is much cheaper than
    `io_callback`.

    Args:
        function: arrays -> pytree of arrays. It must not keep references to its arguments.
        result: shapes and dtypes of the result, as for `io_callback`.
        args: pytrees of traced arrays.
        on_error: called with an error of `function` or of its result. The error that the program
            raises contains only the message.
    """
    args_tree: Any
    result_tree: Any
    leaves, args_tree = jax.tree.flatten(args)
    shapes, result_tree = jax.tree.flatten(result)
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(result)]

    def call_flat(*buffers: Any) -> list[Any]:
        leaves = [np.asarray(buffer) for buffer in buffers]
        try:
            values: list[Any] = result_tree.flatten_up_to(function(*args_tree.unflatten(leaves)))
            for name, value, expected in zip(names, values, shapes, strict=True):
                if np.shape(value) != expected.shape:  # otherwise NumPy broadcasts it
                    raise ValueError(
                        f"a callback returned shape {np.shape(value)}{name}, expected "
                        f"{expected.shape}"
                    )
            return values
        except Exception as error:  # JAX converts text and traceback; see `printable`
            if on_error is not None:
                on_error(error)
            raise RuntimeError(printable(error)) from None

    if jax.default_backend() != "cpu":
        results = io_callback(call_flat, shapes, *leaves)
    else:

        def fill(context: Any, out: list[Any], *buffers: Any) -> None:
            del context
            for buffer, value in zip(out, call_flat(*buffers), strict=True):
                np.copyto(np.asarray(buffer), value, casting="same_kind")

        results = buffer_callback(fill, shapes, has_side_effect=True)(*leaves)
    return result_tree.unflatten(results)


def _name(path: tuple[Any, ...]) -> str:
    """Return " for FIELDS", the path to an array of a result, for messages; "" without fields."""
    fields = tuple(key for key in path if not isinstance(key, jax.tree_util.SequenceKey))
    return f" for {jax.tree_util.keystr(fields, simple=True, separator='.')}" if fields else ""


class HostBatch(Protocol):
    """N host environments that are called with NumPy arrays."""

    @property
    def diverged_value(self) -> str:
        """See `bridge.Pool`."""

    def reset(self, seed: Any) -> Any:
        """Start a new episode of each environment, from one seed or one per environment."""

    def step(self, action: Any) -> EnvStep:
        """Step: actions [N, ...] -> EnvStep with obs, reward, terminated, truncated and diverged.

        The step after an end ignores the action and returns the first observation of the next
        episode with reward 0.
        """

    def render_frame(self) -> np.ndarray | None:
        """See `bridge.Pool`."""

    def close(self) -> None:
        """Close the environments."""


B = TypeVar("B", bound=HostBatch)


class CallbackPool(Generic[B]):
    """A `bridge.Pool` that calls a batch of environments through JAX host callbacks.

    Args:
        envs: the environments, such as a `WorkerPool`.
        observation: space of one observation.
        num_envs: number of environments, N.
        first: index of the first environment in a larger batch.
        at_once: True if an environment resets in the same step in which an episode ends, so the
            last observation is lost. Steps then have the flag `EnvStep.at_once`.
        absent: True if agents may be missing at some steps. Then `reset` also returns a mask of the
            missing agents, bool [N], and steps have `EnvStep.absent` and `EnvStep.ticks`.
        metrics: shape of an environment's metrics in `EnvStep.metrics`; () without metrics.
    """

    def __init__(
        self,
        envs: B,
        observation: spaces.Space,
        num_envs: int,
        first: int = 0,
        *,
        at_once: bool = False,
        absent: bool = False,
        metrics: tuple[int, ...] = (),
    ) -> None:
        """Store the environments; `close` also closes them."""
        self.first = first
        self.envs = envs
        self.num_envs = num_envs
        self.failure: Exception | None = None
        flag = jax.ShapeDtypeStruct((num_envs,), np.bool_)
        self.rows = EnvStep(
            obs=jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype),
                spaces.example(observation),
            ),
            reward=jax.ShapeDtypeStruct((num_envs,), np.float32),
            terminated=flag,
            truncated=flag,
            diverged=flag,
            at_once=flag if at_once else None,
            absent=flag if absent else None,
            ticks=jax.ShapeDtypeStruct((num_envs,), np.float32) if absent else None,
            metrics=jax.ShapeDtypeStruct((num_envs, *metrics), np.float32) if metrics else None,
        )
        self.reset_shapes = (self.rows.obs, flag) if absent else self.rows.obs

    def reset(self, key: Key) -> Any:
        """Reset every environment, with seeds sampled from the key."""
        seed = jax.random.bits(key, dtype=np.uint32) >> 1
        return self._call(
            lambda seed: self.envs.reset(int(seed) + self.first), self.reset_shapes, seed
        )

    def begin(self, seeds: Array) -> Any:
        """Reset every environment, with one seed per environment."""
        return self._call(self.envs.reset, self.reset_shapes, seeds)

    def step(self, token: Token, action: EnvAction) -> Any:
        """Step all environments with one callback."""
        return self._call(lambda _, action: self.envs.step(action), self.rows, token, action)

    def send_values(self, function: Callable[[Any], None], token: Token, values: Any) -> Token:
        """Call `function` on the host with `values` before the next step; return the next token."""
        return self._call(lambda _, values: function(values), None, token, values)[0]

    def _call(self, function: Callable[..., Any], result: Any, *args: Any) -> tuple[Token, Any]:
        """Run `call`; return (token, result). Store errors, because JAX keeps only messages."""

        def store(error: Exception) -> None:
            self.failure = error

        def in_order(*args: Any) -> tuple[np.int32, Any]:
            return TOKEN, function(*args)

        token = jax.ShapeDtypeStruct((), np.int32)
        return call(in_order, (token, result), *args, on_error=store)

    @property
    def diverged_value(self) -> str:
        """Return the last value that diverged; see `bridge.Pool`."""
        return self.envs.diverged_value

    def render_frame(self) -> np.ndarray | None:
        """Return a frame of environment 0 from its `render`."""
        return self.envs.render_frame()

    def close(self) -> None:
        """Close the environments and their workers."""
        self.envs.close()
