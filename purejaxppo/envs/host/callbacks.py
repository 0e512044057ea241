"""Simulators behind callbacks of the compiled program."""

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

MOST = 2**31 - 1
"""The largest token, after which 1 comes."""


def call(function: Callable[..., Any], result: Any, *args: Any) -> Any:
    """Calls `function` on the host, with NumPy's arrays, each time that the program gets there.

    On a CPU it works on the program's own buffers, which is far cheaper than `io_callback`.

    Args:
        function: arrays -> pytree of arrays. It must not hold on to its arguments.
        result: their shapes and dtypes, as of `io_callback`.
        args: pytrees of traced arrays.
    """
    structure: Any
    returned: Any
    given, structure = jax.tree.flatten(args)
    shapes, returned = jax.tree.flatten(result)

    def flat(*buffers: Any) -> list[Any]:
        leaves = [np.asarray(buffer) for buffer in buffers]
        try:
            return returned.flatten_up_to(function(*structure.unflatten(leaves)))
        except Exception as error:  # JAX converts text and traceback; see `printable`
            raise RuntimeError(printable(error)) from None

    if jax.default_backend() != "cpu":
        results = io_callback(flat, shapes, *given)
    else:

        def fill(context: Any, out: list[Any], *buffers: Any) -> None:
            del context
            for buffer, value in zip(out, flat(*buffers), strict=True):
                _write(np.asarray(buffer), value)

        results = buffer_callback(fill, shapes, has_side_effect=True)(*given)
    return returned.unflatten(results)


def _write(there: np.ndarray, value: Any) -> None:
    """Copies a result into the program's buffer; no other shape is broadcast to its own."""
    if there.shape != np.shape(value):
        raise ValueError(f"a callback returned shape {np.shape(value)} in place of {there.shape}")
    np.copyto(there, value, casting="same_kind")


class Batch(Protocol):
    """N environments on the host, which are called with NumPy's arrays."""

    @property
    def diverged_value(self) -> str:
        """See `bridge.Pool`."""

    def reset(self, seed: Any) -> Any:
        """Starts a new episode of each, from one seed or a seed each; see `CallbackPool`."""

    def step(self, action: Any) -> EnvStep:
        """Actions [N, ...] -> EnvStep, at least with `diverged`."""

    def picture(self) -> np.ndarray | None:
        """See `bridge.Pool`."""

    def close(self) -> None:
        """Ends the environments."""


B = TypeVar("B", bound=Batch)


class CallbackPool(Generic[B]):
    """Environments of this process or of workers behind callbacks; see `bridge.Pool`.

    Args:
        envs: the environments, such as a `WorkerPool`.
        observation: their space.
        num_envs: N.
        first: the number that the first environment has in a larger batch.
        at_once: their steps have a flag `at_once`; see `EnvStep`.
        absent: agents may ask for nothing: `reset` returns (obs, bool [N]: there is no agent yet),
            and steps have a flag `absent`; see `EnvStep`.
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
    ) -> None:
        """Stores the environments, which `close` closes."""
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
        )
        self.begun = (self.rows.obs, flag) if absent else self.rows.obs
        self.token = jax.ShapeDtypeStruct((), np.int32)

    def reset(self, key: Key) -> Any:
        """Resets every environment, with seeds drawn from the key."""
        seed = jax.random.bits(key, dtype=np.uint32) >> 1
        return call(self._reset, (self.token, self.begun), seed)

    def begin(self, seeds: Array) -> Any:
        """Resets every environment, with its own seed."""
        return call(self._begin, (self.token, self.begun), seeds)

    def step(self, token: Token, action: EnvAction) -> Any:
        """Steps all environments, with one callback."""
        return call(self._step, (self.token, self.rows), token, action)

    def tell(self, function: Callable[[Any], None], token: Token, values: Any) -> Token:
        """Calls `function` on the host with `values`, before the next step: -> token."""

        def set_values(token: Token, values: Any) -> Any:
            self._ask(function, values)
            return _next(token)

        return call(set_values, self.token, token, values)

    def _reset(self, seed: Any) -> tuple[np.int32, Any]:
        return np.int32(1), self._ask(self.envs.reset, int(seed) + self.first)

    def _begin(self, seeds: Any) -> tuple[np.int32, Any]:
        return np.int32(1), self._ask(self.envs.reset, seeds)

    def _step(self, token: Token, action: EnvAction) -> tuple[np.int32, EnvStep]:
        return _next(token), self._ask(self.envs.step, action)

    def _ask(self, function: Any, *args: Any) -> Any:
        """Calls `function` and stores its error: JAX passes on no more than the error's text."""
        try:
            return function(*args)
        except Exception as error:
            self.failure = error
            raise

    @property
    def diverged_value(self) -> str:
        """The last value that diverged; see `bridge.Pool`."""
        return self.envs.diverged_value

    def picture(self) -> np.ndarray | None:
        """A picture of environment 0 by its own `render`."""
        return self.envs.picture()

    def close(self) -> None:
        """Ends environments and workers."""
        self.envs.close()


def _next(token: Token) -> np.int32:
    """The token of the next call, a number that counts calls."""
    return np.int32(int(token) % MOST + 1)
