"""Settings of JAX that purejaxppo does not support."""

from typing import Any, NamedTuple

import jax


class Refused(NamedTuple):
    """Values of a setting that cannot be used, and the reason."""

    values: tuple[Any, ...]
    reason: str


GUARD = Refused(
    ("disallow", "disallow_explicit"), "numbers of a config are copied to the device implicitly"
)
UNSUPPORTED = {
    "jax_enable_x64": Refused((True,), "purejaxppo computes in 32 bits"),
    "jax_numpy_rank_promotion": Refused(("raise",), "purejaxppo and simulators broadcast ranks"),
    "jax_numpy_dtype_promotion": Refused(("strict",), "purejaxppo and simulators mix dtypes"),
    "jax_debug_key_reuse": Refused((True,), "purejaxppo folds numbers into keys that it splits"),
    "jax_transfer_guard": GUARD,
    "jax_transfer_guard_host_to_device": GUARD,
}
AHEAD_OF_TIME = {
    "jax_disable_jit": Refused((True,), "programs are compiled ahead of time"),
}
"""Settings that do not work with programs that are compiled before their first call."""
IN_RUNS = AHEAD_OF_TIME | {
    "jax_debug_infs": Refused((True,), "the state of a run holds infinity before the first update"),
}
PURE = {
    "jax_debug_nans": Refused((True,), "learning curves hold NaN where no episode ended"),
}
"""Settings that do not work with `make_train`."""


def check_settings(also: dict[str, Refused] | None = None) -> None:
    """Check that JAX's settings can be used.

    Args:
        also: further settings to reject, in addition to `UNSUPPORTED`.

    Raises:
        ValueError: a setting has an unsupported value; the error names its variable.
    """
    for name, (values, reason) in (UNSUPPORTED | (also or {})).items():
        value = getattr(jax.config, name)
        if value in values:
            raise ValueError(
                f"{name.upper()} = {value}: {reason}. Unset this variable, or change {name} in the "
                f"program that sets it."
            )
