"""Programs compiled as for users, while other tests compile fast."""

import contextlib

import jax
import pytest
from jax._src import compiler


@jax.jit
def anything():
    return 0


@contextlib.contextmanager
def optimization():
    """Undo the compile settings of conftest.py, in this process and its child processes."""
    anything()  # XLA must read its flags before they are removed below
    options = compiler.get_compile_options
    before = jax.config.read("jax_disable_most_optimizations")

    def as_a_user_has_them(*args, **kwargs):
        found = options(*args, **kwargs)  # XLA reads XLA_FLAGS only once in a process
        found.env_option_overrides = [
            *found.env_option_overrides,
            ("xla_backend_extra_options", ""),
            ("xla_cpu_parallel_codegen_split_count", 32),
        ]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        patch.delenv("XLA_FLAGS", raising=False)
        patch.setattr(compiler, "get_compile_options", as_a_user_has_them)
        jax.config.update("jax_disable_most_optimizations", False)
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", before)
