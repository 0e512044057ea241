"""Calls to the host from compiled programs, with the program's own buffers and in general."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.children import environment

from purejaxppo.envs.host.bridge import simulator_errors
from purejaxppo.envs.host.callbacks import CallbackPool, call
from purejaxppo.envs.host.workers.errors import SimulatorError, printable
from purejaxppo.envs.step import zeros
from purejaxppo.spaces import Box

pytestmark = pytest.mark.toy
SHAPES = {
    "sum": jax.ShapeDtypeStruct((), np.int32),
    "twice": jax.ShapeDtypeStruct((3,), np.float32),
}


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_call_in_a_loop_returns_the_results_of_the_host_function(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    seen = []

    def host(number, row):
        seen.append(int(number))
        return {"sum": np.int32(number + 1), "twice": (2 * row["x"]).astype(np.float32)}

    def step(number, _):
        out = call(host, SHAPES, number, {"x": jnp.full(3, number)})
        return out["sum"], out["twice"]

    last, rows = jax.jit(lambda: jax.lax.scan(step, jnp.int32(0), length=4))()
    assert int(last) == 4 and seen == [0, 1, 2, 3]
    np.testing.assert_array_equal(rows, 2.0 * np.arange(4)[:, None] * np.ones(3))


@pytest.mark.parametrize("wrong", [np.ones(1, np.float32), np.ones((1, 3), np.float32), np.ones(3)])
def test_a_wrong_shape_is_an_error_and_float64_is_rounded(wrong):
    def host(number):
        return {"sum": np.int32(0), "twice": wrong}

    run = jax.jit(lambda: call(host, SHAPES, jnp.int32(0)))
    if wrong.shape == (3,):  # float64 is rounded
        assert run()["twice"].tolist() == [1, 1, 1]
        return
    shapes = re.escape(f"returned shape {wrong.shape} for twice, expected (3,)")
    with pytest.raises(jax.errors.JaxRuntimeError, match=shapes):
        run()["sum"].block_until_ready()


class Batch:
    """N environments whose steps do not set `diverged`."""

    diverged_value = ""

    def reset(self, seed):
        return np.zeros((3, 2), np.float32)

    def step(self, action):
        return zeros((), 3)._replace(obs=self.reset(0), diverged=None)


def test_a_pool_stores_the_error_of_a_step_with_a_missing_field():
    pool = CallbackPool(Batch(), Box((2,)), 3)
    token, _ = jax.jit(pool.reset)(jax.random.key(0))
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(pool.step)(token, jnp.zeros(3)))
    assert str(pool.failure) == "a callback returned shape () for diverged, expected (3,)"


def test_a_key_error_of_custom_code_names_its_line():
    class Lost(Batch):
        def step(self, action):
            return {}["speed"]

    pool = CallbackPool(Lost(), Box((2,)), 3)
    token, _ = jax.jit(pool.reset)(jax.random.key(0))
    line = Lost.step.__code__.co_firstlineno + 1
    words = rf"^mine: line {line} of \S*test_callbacks.py raises KeyError: 'speed'$"
    with pytest.raises(SimulatorError, match=words), simulator_errors("mine", pool):
        jax.block_until_ready(jax.jit(pool.step)(token, jnp.zeros(3)))


LONE_SURROGATE = """
import jax, numpy as np
from purejaxppo.envs.host.callbacks import call

def host():
    raise ValueError("no file caf\\udce9")

code = compile("def f(): host()", "caf\\udce9.py", "exec")
exec(code)
try:
    jax.jit(lambda: call(f, jax.ShapeDtypeStruct((), np.int32)))().block_until_ready()
except jax.errors.JaxRuntimeError as error:
    assert "no file caf\\\\udce9" in str(error), error
else:
    raise SystemExit("no error")
"""


def test_a_file_name_in_another_encoding_does_not_crash_the_process():
    """The name is in the error and in its traceback. JAX alone crashes with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", LONE_SURROGATE], env=environment(), check=False)
    assert done.returncode == 0


def test_error_texts_are_printable_and_short():
    class Broken(ValueError):
        def __str__(self):
            raise KeyError("no text")

    assert printable(ValueError("caf\udce9 é")) == "caf\\udce9 é"
    assert printable(Broken()) == "Broken"
    text = printable(ValueError("a" * 10_000 + "b" * 10_000))
    assert text == "a" * 2000 + " ... " + "b" * 2000
