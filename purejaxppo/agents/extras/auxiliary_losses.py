"""Auxiliary losses (`ppo.terms`): custom losses added to PPO's, each with its own coefficient.

An auxiliary loss is a function (outputs, rows) -> [B], or an `AuxiliaryLoss`. `outputs` are the
network's outputs for a minibatch (`types.Outputs`): `features` [B, F], `dist_params` [B, P],
`critic` [B, K]. `rows` are the rows of the minibatch: `obs` (normalised, if configured), `action`,
`log_prob`, `value`, `target`, `advantage`, `valid`, and the optional rows that it requests. The
mean over valid rows, times the coefficient, is added to PPO's loss. The mean itself is a metric.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo import spaces
from purejaxppo.agents.decisions import has_next_obs
from purejaxppo.agents.networks.build import Network
from purejaxppo.agents.networks.distributions import Distribution
from purejaxppo.agents.obs_storage import ObsStorage, before_and_after
from purejaxppo.aliases import Action, Array, Key, Obs, Params
from purejaxppo.config import extensions, tracing
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import PPOConfig
from purejaxppo.streams import AUXILIARY_LOSSES, stream
from purejaxppo.types import Batch, Losses, Outputs, Rollout, RunningStats

if TYPE_CHECKING:
    from purejaxppo.agents.policy import Policy

OPTIONAL_ROWS = ("next_obs", "reward", "terminated", "truncated")
"""Rows that are stored on request. `next_obs` is the true last observation where an episode ends.
`reward` is the environment's. Where `next_obs` is unknown (`EnvStep.at_once`), a loss that uses it
is 0, and its `valid` is False."""
HAS_NEXT_OBS = "has_next_obs"
"""Name of the rows of `decisions.has_next_obs`, stored where `next_obs` may be unknown."""
COMMON_ROWS = ("obs", "action", "log_prob", "value", "target", "advantage", "valid")
"""Rows that every auxiliary loss gets."""
PARAMS = "terms"
"""Entry of an agent's parameters with the parameters of auxiliary losses."""
MAX_LOSSES = 32
"""Largest number of auxiliary losses."""


class AuxiliaryLoss(NamedTuple):
    """An auxiliary loss."""

    loss: Callable[..., Array]
    """(outputs, rows) -> [B]; with `init`: (params, outputs, rows) -> [B]."""
    rows: tuple[str, ...] = ()
    """Names of the optional rows that the loss uses, from `OPTIONAL_ROWS`."""
    init: Callable[[Key, Outputs, Any], Params] | None = None
    """(key, outputs, rows) -> parameters, trained together with the agent's."""
    name: str = ""
    """Name in the metric losses/NAME. Default: name of the function."""


Term = AuxiliaryLoss
"""Name of `AuxiliaryLoss` before version 0.3, kept until 0.4."""


class Rows:
    """Rows of a minibatch by name, [B, ...]. AttributeError for other names."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Store the arrays."""
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        if name in self._arrays:
            return self._arrays[name]
        if name in OPTIONAL_ROWS:
            hint = f"Request it with rows = ({name!r},)."
        else:
            hint = f"Rows: {', '.join(self._arrays)}."
        raise AttributeError(f"rows has no {name!r}. {hint}")


class AuxiliaryLosses(NamedTuple):
    """All auxiliary losses of a run."""

    rows: tuple[str, ...]
    """Names of the optional rows that the losses use."""
    losses: Callable[[Params, Outputs, Batch, RunningStats], dict[str, Array]]
    """(params, outputs, batch, observation statistics) -> losses by name; see `evaluate`."""
    init: Callable[[Key], Params]
    """key -> parameters, to be added to those of the network; {} without any."""
    metric_names: tuple[str, ...] = ()
    """Names of the metrics. Each is the mean of a loss."""

    def rows_to_store(self, storage: ObsStorage, rollout: Rollout) -> dict[str, Any]:
        """Return the optional rows [T, N, ...] of a rollout, by name."""
        transitions = rollout.transitions._asdict()
        rows = {name: transitions[name] for name in self.rows if name != "next_obs"}
        if "next_obs" in self.rows:
            rows["next_obs"] = before_and_after(storage, rollout)[1]
            if rollout.transitions.at_once is not None:
                rows[HAS_NEXT_OBS] = has_next_obs(rollout.transitions)
        return rows


NONE = AuxiliaryLosses((), lambda params, outputs, batch, stats: {}, lambda key: {})
"""No auxiliary losses."""


def make(config: PPOConfig, network: Network, policy: "Policy") -> AuxiliaryLosses:
    """Return the auxiliary losses of the config, checked by tracing.

    Raises:
        ValueError: a loss cannot be loaded, has an invalid type, or does not return one number
            per row.
    """
    if not config.terms:
        return NONE
    entries = [as_auxiliary_loss(value) for value in config.terms]
    names = [entry.name for entry in entries]
    taken = Losses._fields[:-1]  # the last field is not a metric
    if len(set(names)) < len(names) or set(names) & set(taken) or len(names) > MAX_LOSSES:
        raise ValueError(
            f"ppo.terms: invalid names {', '.join(names)}. Use at most {MAX_LOSSES} entries, each "
            f"with a different name, other than {', '.join(taken)}."
        )
    stored_rows = tuple(sorted({name for entry in entries for name in entry.rows}))
    outputs, arrays = example(policy.network_input, network, policy.distribution)
    inits = {
        entry.name: checked_init(entry, f"ppo.terms = {text}", outputs, rows_of(arrays, entry))
        for entry, text in zip(entries, config.terms, strict=True)
    }
    with_params = {name: init for name, init in inits.items() if init}

    def losses(
        params: Params, outputs: Outputs, batch: Batch, stats: RunningStats
    ) -> dict[str, Array]:
        return evaluate(entries, params, outputs, batch, partial(policy.normalize_obs, stats))

    def init(key: Key) -> Params:
        keys = jax.random.split(key, max(len(with_params), 1))
        params = {name: f(k) for (name, f), k in zip(with_params.items(), keys, strict=False)}
        return {PARAMS: params} if params else {}

    return AuxiliaryLosses(stored_rows, losses, init, tuple(f"losses/{name}" for name in names))


def add_params(losses: AuxiliaryLosses, network: Network) -> Network:
    """Return the network, whose `init` also returns the parameters of the auxiliary losses."""
    if losses is NONE:
        return network
    return network._replace(
        init=lambda key: network.init(key) | losses.init(stream(key, AUXILIARY_LOSSES))
    )


def as_auxiliary_loss(value: str | CodeRef) -> AuxiliaryLoss:
    """Return an entry of `ppo.terms` as an `AuxiliaryLoss` with a name.

    A function may have attributes `rows` and `init`.

    Raises:
        ValueError: the entry cannot be loaded, has an invalid type, or names unknown rows.
    """
    loss, field = extensions.make(extensions.TERM, value), f"ppo.terms = {value}"
    if not isinstance(loss, AuxiliaryLoss):
        rows = getattr(loss, "rows", ())
        loss = AuxiliaryLoss(loss, (rows,) if isinstance(rows, str) else tuple(rows))
        loss = loss._replace(init=getattr(loss.loss, "init", None))
    unknown = [name for name in loss.rows if name not in OPTIONAL_ROWS]
    if unknown:
        raise ValueError(
            f"{field}: unknown rows {unknown[0]!r}. Use {', '.join(OPTIONAL_ROWS)}. Always "
            f"available: {', '.join(COMMON_ROWS)}."
        )
    name = loss.name or getattr(loss.loss, "__name__", type(loss.loss).__name__)
    return loss._replace(name=name)


def example(
    observation: spaces.Space, network: Network, distribution: Distribution, size: int = 4
) -> tuple[Outputs, dict[str, Any]]:
    """Return the shapes of the outputs and of all rows of a minibatch of `size`."""
    key = jax.random.key(0)

    def run(key: Key) -> tuple[Outputs, Obs, Action]:
        obs = jax.tree.map(jnp.asarray, spaces.example(observation, (size,)))
        carry, start = network.initial_carry((size,)), jnp.ones(size, bool)
        outputs = network.apply(network.init(key), carry, obs, start)
        return outputs, obs, distribution.sample(outputs.dist_params, key)

    outputs, obs, action = jax.eval_shape(run, key)
    number, flag = tracing.rows(size), tracing.rows(size, bool)
    arrays = dict.fromkeys(("log_prob", "value", "target", "advantage", "reward"), number)
    flags = dict.fromkeys(("valid", "terminated", "truncated"), flag)
    return outputs, {**arrays, **flags, "obs": obs, "next_obs": obs, "action": action}


def rows_of(arrays: Mapping[str, Any], entry: AuxiliaryLoss) -> dict[str, Any]:
    """Select the arrays listed in `entry.rows`, and those that are always available."""
    return {name: arrays[name] for name in (*COMMON_ROWS, *entry.rows)}


def checked_init(
    entry: AuxiliaryLoss, field: str, outputs: Outputs, arrays: Mapping[str, Any]
) -> Any:
    """Check an auxiliary loss and return its function, key -> parameters; None without parameters.

    Args:
        entry: the auxiliary loss.
        field: config field and value, for errors.
        outputs: shapes of the network's outputs.
        arrays: shapes of the rows.

    Raises:
        ValueError: `init` or `loss` cannot be traced, or does not return one number per row.
    """
    number = tracing.rows(*arrays["valid"].shape)

    def loss(*args: Any) -> Any:
        return entry.loss(*args[:-1], Rows(args[-1]))

    if entry.init is None:
        tracing.check_arguments(entry.loss, field, "(outputs, rows)", 2)
        tracing.check(loss, field, "(outputs, rows)", outputs, arrays, expected=number)
        return None
    init, signature = entry.init, "(params, outputs, rows)"
    tracing.check_arguments(init, f"{field}: init", "(key, outputs, rows)", 3)
    tracing.check_arguments(entry.loss, field, signature, 3)

    def parameters(key: Key) -> Params:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (outputs, dict(arrays)))
        return init(key, zeros[0], Rows(zeros[1]))

    params = tracing.check(parameters, f"{field}: init", "(key)", jax.random.key(0))
    tracing.check(loss, field, signature, params, outputs, arrays, expected=number)
    return jax.custom_batching.sequential_vmap(parameters)


def evaluate(
    entries: list[AuxiliaryLoss],
    params: Params,
    outputs: Outputs,
    batch: Batch,
    normalize: Callable[[Obs], Obs],
) -> dict[str, Array]:
    """Return each auxiliary loss of a minibatch by name: [B], or [B, L] for recurrent policies.

    L is flattened into B before the losses are called.

    Args:
        entries: the auxiliary losses.
        params: the agent's parameters.
        outputs: outputs of the network.
        batch: rows [B], or [B, L] for recurrent policies.
        normalize: observations -> normalised observations.
    """
    shape = batch.valid.shape

    def flat(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[len(shape) :])), tree)

    arrays = {**batch._asdict(), **batch.extra, "obs": normalize(batch.obs)}
    if "next_obs" in batch.extra:
        arrays["next_obs"] = normalize(batch.extra["next_obs"])
    outputs = flat(outputs._replace(carry=()))
    losses = {}
    for entry in entries:
        own_params = (params[PARAMS][entry.name],) if entry.init else ()
        is_known = arrays.get(HAS_NEXT_OBS) if "next_obs" in entry.rows else None
        rows = arrays if is_known is None else {**arrays, "valid": is_known}
        loss = entry.loss(*own_params, outputs, Rows(flat(rows_of(rows, entry)))).reshape(shape)
        losses[entry.name] = loss if is_known is None else jnp.where(is_known, loss, 0.0)
    return losses
