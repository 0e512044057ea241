"""JAX settings that purejaxppo does not support."""

from typing import Any, NamedTuple

import jax


class Unsupported(NamedTuple):
    """Unsupported values of a setting, and the reason."""

    values: tuple[Any, ...]
    reason: str


GUARD = Unsupported(
    ("disallow", "disallow_explicit"),
    "purejaxppo transfers numbers of the config to the device implicitly",
)
UNSUPPORTED = {
    "jax_enable_x64": Unsupported((True,), "purejaxppo computes in 32 bits"),
    "jax_numpy_rank_promotion": Unsupported(
        ("raise",), "purejaxppo and simulators rely on rank promotion"
    ),
    "jax_numpy_dtype_promotion": Unsupported(("strict",), "purejaxppo and simulators mix dtypes"),
    "jax_debug_key_reuse": Unsupported(
        (True,), "purejaxppo derives more keys from a key after splitting it"
    ),
    "jax_transfer_guard": GUARD,
    "jax_transfer_guard_host_to_device": GUARD,
}
AHEAD_OF_TIME = {
    "jax_disable_jit": Unsupported((True,), "purejaxppo compiles its programs before it runs them"),
}
"""Settings that do not work with ahead-of-time compilation."""
IN_RUNS = AHEAD_OF_TIME | {
    "jax_debug_infs": Unsupported(
        (True,), "the state of a run contains infinity before the first update"
    ),
}
PURE = {
    "jax_debug_nans": Unsupported((True,), "learning curves contain NaN if no episode ended"),
}
"""Settings that do not work with `make_train`."""


def check_settings(also: dict[str, Unsupported] | None = None) -> None:
    """Check JAX's settings.

    Args:
        also: further settings to reject, in addition to `UNSUPPORTED`.

    Raises:
        ValueError: a setting has an unsupported value.
    """
    for name, (values, reason) in (UNSUPPORTED | (also or {})).items():
        value = getattr(jax.config, name)
        if value in values:
            raise ValueError(
                f"{name.upper()} = {value}: {reason}. Unset this environment variable, or "
                f"change {name} in your program."
            )
