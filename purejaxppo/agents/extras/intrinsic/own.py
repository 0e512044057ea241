"""Custom intrinsic rewards, checked by tracing."""

from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.agents.extras.intrinsic.base import BonusRows, Intrinsic
from purejaxppo.agents.networks import distributions
from purejaxppo.config import extensions, tracing
from purejaxppo.config.schema import Config
from purejaxppo.spaces import example


def make(config: Config, spec: Any) -> Intrinsic:
    """Return the custom `Intrinsic` of the config, or the result of its function of (config, spec).

    Raises:
        ValueError: the reward cannot be loaded or created, or its functions do not match a
            rollout.
    """
    kind = config.intrinsic.kind
    intrinsic: Intrinsic = extensions.make(extensions.INTRINSIC, kind, config, spec)
    check(intrinsic, f"intrinsic.kind = {kind}", rows_of(config, spec))
    return intrinsic


def check(intrinsic: Intrinsic, field: str, rows: BonusRows) -> None:
    """Check that an intrinsic reward returns one number per row, and the metrics that it lists.

    Raises:
        ValueError: it returns something else.
    """
    key = jax.random.key(0)
    state = tracing.check(intrinsic.init, f"{field}: init", "(key)", key)
    number = jax.ShapeDtypeStruct(rows.valid.shape, jnp.float32)
    tracing.check(
        intrinsic.reward, f"{field}: reward", "(state, rows)", state, rows, expected=number
    )
    tracing.check_arguments(intrinsic.update, f"{field}: update", "(state, rows, key, psum)", 4)
    if intrinsic.track is not None:
        track, returns = intrinsic.track, jnp.zeros(rows.valid.shape[1])
        tracing.check_arguments(track, f"{field}: track", "(state, returns, rows, psum)", 4)
        tracing.check(
            lambda state, returns, rows: track(state, returns, rows, lambda x: x),
            f"{field}: track",
            "(state, returns, rows)",
            *(state, returns, rows),
            expected=(state, returns),
        )
    metrics = dict.fromkeys(intrinsic.metric_names, jax.ShapeDtypeStruct((), jnp.float32))
    tracing.check(
        lambda state, rows, key: intrinsic.update(state, rows, key, lambda x: x),
        f"{field}: update",
        "(state, rows, key)",
        *(state, rows, key),
        expected=(state, metrics),
    )


def rows_of(config: Config, spec: Any) -> BonusRows:
    """Return the rows of a small rollout, for their shapes."""
    shape = (config.intrinsic.num_minibatches, 2)
    obs = example(spec.observation, shape)
    dist = distributions.for_space(spec.action, config.network.distribution)
    action = distributions.stored_actions(dist, shape)
    return BonusRows(obs, obs, action, jnp.zeros(shape, bool))
