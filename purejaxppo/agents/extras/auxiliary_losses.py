"""Users' own terms of the loss, beside PPO's: each with a coefficient, rows, parameters, a metric.

A term is a function (outputs, rows) -> [B], or an `AuxiliaryLoss`. `outputs` are the network's for
a minibatch (`types.Outputs`): `features` [B, F], `dist_params` [B, P], `critic` [B, K]. `rows` are
the minibatch's: `obs` (as the network sees it), `action`, `log_prob`, `value`, `target`,
`advantage`, `valid`, and those that the term asks for. Sums are over valid rows.
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
from purejaxppo.streams import TERMS, stream
from purejaxppo.types import Batch, Losses, Outputs, Rollout, RunningStats

if TYPE_CHECKING:
    from purejaxppo.agents.policy import Policy

ASKED = ("next_obs", "reward", "terminated", "truncated")
"""Rows that are stored for terms that name them. `next_obs` is the true last observation where
an episode ends; `reward` is the environment's. Losses with `next_obs` are 0 where it is
unknown (`EnvStep.at_once`), and their `valid` is False there."""
FOLLOWED = "followed"
"""The rows of `decisions.has_next_obs`, stored where `next_obs` may be unknown."""
GIVEN = ("obs", "action", "log_prob", "value", "target", "advantage", "valid")
"""Rows that every term has."""
PARAMS = "terms"
"""The entry of an agent's parameters that holds those of terms."""
MOST = 32
"""Largest number of terms."""


class AuxiliaryLoss(NamedTuple):
    """A term of the loss."""

    loss: Callable[..., Array]
    """(outputs, rows) -> [B] or, with `init`, (params, outputs, rows) -> [B]."""
    rows: tuple[str, ...] = ()
    """Names of the rows to store for it, of `ASKED`."""
    init: Callable[[Key, Outputs, Any], Params] | None = None
    """(key, outputs, rows) -> parameters, which are trained with the agent's."""
    name: str = ""
    """Name of its metric, losses/NAME; empty: that of the function."""


Term = AuxiliaryLoss
"""Its name before version 0.3, kept until 0.4."""


class Rows:
    """Rows of a minibatch by name, [B, ...]; AttributeError for those not asked for."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Holds the arrays."""
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        if name in self._arrays:
            return self._arrays[name]
        hint = f"ask for it with rows = ({name!r},)" if name in ASKED else f"there are {GIVEN}"
        raise AttributeError(f"rows has no {name!r}; {hint}")


class AuxiliaryLosses(NamedTuple):
    """All terms of a loss."""

    rows: tuple[str, ...]
    """Names of the rows that they ask for."""
    losses: Callable[[Params, Outputs, Batch, RunningStats], dict[str, Array]]
    """(agent's parameters, outputs, batch, statistics of observations) -> [B, (L)] by name."""
    init: Callable[[Key], Params]
    """key -> the agent's parameters besides its network's, {} if there are none."""
    figures: tuple[str, ...] = ()
    """The dashboard's names of the terms' means."""

    def stored(self, storage: ObsStorage, rollout: Rollout) -> dict[str, Any]:
        """The rows [T, N, ...] of a rollout that terms ask for, by name."""
        transitions = rollout.transitions._asdict()
        found = {name: transitions[name] for name in self.rows if name != "next_obs"}
        if "next_obs" in self.rows:
            found["next_obs"] = before_and_after(storage, rollout)[1]
            if rollout.transitions.at_once is not None:
                found[FOLLOWED] = has_next_obs(rollout.transitions)
        return found


NONE = AuxiliaryLosses((), lambda params, outputs, batch, stats: {}, lambda key: {})
"""No terms."""


def make(config: PPOConfig, network: Network, policy: "Policy") -> AuxiliaryLosses:
    """The terms that a config names, checked by tracing.

    Raises:
        ValueError: one cannot be loaded, is no term, or does not give a number per row.
    """
    if not config.terms:
        return NONE
    terms = [as_term(value) for value in config.terms]
    names = [term.name for term in terms]
    if len(set(names)) < len(names) or set(names) & set(Losses._fields) or len(names) > MOST:
        raise ValueError(
            f"ppo.terms: their metrics are losses/{', losses/'.join(names)}. Give at most {MOST} "
            f"terms, each with a different name, not {', '.join(Losses._fields)}."
        )
    asked = tuple(sorted({name for term in terms for name in term.rows}))
    outputs, arrays = example(policy.network_input, network, policy.distribution)
    made = {
        term.name: initializer(term, f"ppo.terms = {text}", outputs, shown(arrays, term))
        for term, text in zip(terms, config.terms, strict=True)
    }
    with_params = {name: init for name, init in made.items() if init}

    def losses(
        params: Params, outputs: Outputs, batch: Batch, stats: RunningStats
    ) -> dict[str, Array]:
        return evaluate(terms, params, outputs, batch, partial(policy.normalize_obs, stats))

    def init(key: Key) -> Params:
        keys = jax.random.split(key, max(len(with_params), 1))
        own = {name: f(k) for (name, f), k in zip(with_params.items(), keys, strict=False)}
        return {PARAMS: own} if own else {}

    return AuxiliaryLosses(asked, losses, init, tuple(f"losses/{name}" for name in names))


def attach(terms: AuxiliaryLosses, network: Network) -> Network:
    """The network, with the terms' parameters beside its own."""
    if terms is NONE:
        return network
    return network._replace(init=lambda key: network.init(key) | terms.init(stream(key, TERMS)))


def as_term(value: str | CodeRef) -> AuxiliaryLoss:
    """Return an entry of `ppo.terms` as a named `AuxiliaryLoss`, with a function's rows and init.

    Raises:
        ValueError: it cannot be loaded, is not a term, or names unknown rows.
    """
    found, where = extensions.make(extensions.TERM, value), f"ppo.terms = {value}"
    if not isinstance(found, AuxiliaryLoss):
        rows = getattr(found, "rows", ())
        found = AuxiliaryLoss(found, (rows,) if isinstance(rows, str) else tuple(rows))
        found = found._replace(init=getattr(found.loss, "init", None))
    unknown = [name for name in found.rows if name not in ASKED]
    if unknown:
        raise ValueError(
            f"{where}: unknown rows {unknown[0]!r}. It can name {', '.join(ASKED)}, and always has "
            f"{', '.join(GIVEN)}."
        )
    name = found.name or getattr(found.loss, "__name__", type(found.loss).__name__)
    return found._replace(name=name)


def example(
    observation: spaces.Space, network: Network, distribution: Distribution, size: int = 4
) -> tuple[Outputs, dict[str, Any]]:
    """Shapes of the outputs and of all rows of a minibatch of `size`."""
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


def shown(arrays: Mapping[str, Any], term: AuxiliaryLoss) -> dict[str, Any]:
    """The rows that a term sees."""
    return {name: arrays[name] for name in (*GIVEN, *term.rows)}


def initializer(
    term: AuxiliaryLoss, where: str, outputs: Outputs, arrays: Mapping[str, Any]
) -> Any:
    """A function, key -> a term's parameters, None if it has none; checks the term.

    Raises:
        ValueError: `init` or `loss` cannot be traced, or does not give a number per row.
    """
    number = tracing.rows(*arrays["valid"].shape)

    def loss(*args: Any) -> Any:
        return term.loss(*args[:-1], Rows(args[-1]))

    if term.init is None:
        tracing.check_arguments(term.loss, where, "(outputs, rows)", 2)
        tracing.check(loss, where, "(outputs, rows)", outputs, arrays, gives=number)
        return None
    init, signature = term.init, "(params, outputs, rows)"
    tracing.check_arguments(init, f"{where}: init", "(key, outputs, rows)", 3)
    tracing.check_arguments(term.loss, where, signature, 3)

    def parameters(key: Key) -> Params:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (outputs, dict(arrays)))
        return init(key, zeros[0], Rows(zeros[1]))

    params = tracing.check(parameters, f"{where}: init", "(key)", jax.random.key(0))
    tracing.check(loss, where, signature, params, outputs, arrays, gives=number)
    return jax.custom_batching.sequential_vmap(parameters)


def evaluate(
    terms: list[AuxiliaryLoss],
    params: Params,
    outputs: Outputs,
    batch: Batch,
    normalize: Callable[[Obs], Obs],
) -> dict[str, Array]:
    """Each term's loss of a minibatch's rows [B, (L)], by name; sequences are rows, too."""
    shape = batch.valid.shape

    def flat(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[len(shape) :])), tree)

    arrays = {**batch._asdict(), **batch.extra, "obs": normalize(batch.obs)}
    if "next_obs" in batch.extra:
        arrays["next_obs"] = normalize(batch.extra["next_obs"])
    outputs = flat(outputs._replace(carry=()))
    found = {}
    for term in terms:
        given = (params[PARAMS][term.name],) if term.init else ()
        is_known = arrays.get(FOLLOWED) if "next_obs" in term.rows else None
        rows = arrays if is_known is None else {**arrays, "valid": is_known}
        loss = term.loss(*given, outputs, Rows(flat(shown(rows, term)))).reshape(shape)
        found[term.name] = loss if is_known is None else jnp.where(is_known, loss, 0.0)
    return found
