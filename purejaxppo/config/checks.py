"""Checks of settings, alone and together; `Config` runs them when it is made."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from purejaxppo.config.hints import show
from purejaxppo.config.references import CodeRef, is_reference

if TYPE_CHECKING:
    from purejaxppo.config.schema import Config


MOST = 2**31 - 1
"""Largest number of rows in a rollout, and of updates in a run: both are counted in int32."""


def check(config: "Config") -> None:
    """Checks fields against each other, before anything is compiled.

    Raises:
        ValueError: names the fields, the values found, and what would do.
    """
    check_ranges(config)
    check_singles(config)
    check_kinds(config)
    check_products(config)


def inside(path: str) -> bool:
    """True if a path stays in the folder that it is relative to."""
    drives = (PurePosixPath(path), PureWindowsPath(path))
    return not any(p.root or p.drive or ".." in p.parts for p in drives)


def settings(config: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(dotted name, its `config.setting`, value) of every field, with its section's use."""
    for field in fields(config):
        value, own = getattr(config, field.name), dict(field.metadata)
        if not is_dataclass(value) or isinstance(value, CodeRef):
            yield f"{prefix}{field.name}", {"free": False, "swept": True, **own}, value
            continue
        for name, inner, x in settings(value, f"{prefix}{field.name}."):
            use = {"free": inner["free"] or own["free"], "swept": inner["swept"] and own["swept"]}
            yield name, inner | use, x


def without_effect(configs: Sequence["Config"]) -> list[str]:
    """Return a line for each setting that differs from its default and has no effect.

    Args:
        configs: of one run, or of all runs of a sweep. A setting that has an effect in one of them
            gets no line.
    """
    lines, values = [], [{name: value for name, _, value in settings(c)} for c in configs]
    for name, metadata, default in settings(type(configs[0])()):
        needs = metadata.get("needs")
        changed = dict.fromkeys(show(v[name]) for v in values if v[name] != default)
        if needs and changed and not any(is_met(needs, v) for v in values):
            lines.append(f"{name} = {', '.join(changed)} has no effect: it needs {needs}")
    return lines


def is_met(needs: str, values: Mapping[str, Any]) -> bool:
    """Return True if one of the alternatives in `needs` is met; see `schema.setting`.

    Custom code meets any need, because it may use every setting.

    Args:
        needs: such as "ppo.objective = kl or clip_kl".
        values: of all settings by dotted name.
    """
    name = ""
    for alternative in re.split(", | or ", needs):
        match alternative.split():
            case [name, ">", limit]:
                met = values[name] > float(limit)
            case [one] if one in values:
                met = bool(values[one])
            case [*start, word]:
                name = start[0] if start else name
                met = show(values[name]) == word or is_reference(show(values[name]))
        if met:
            return True
    return False


def check_ranges(config: Any, prefix: str = "") -> None:
    """Check for numbers that are too small, too large, or not finite.

    Args:
        config: a dataclass of fields made by `schema.setting`, and of sections.
        prefix: of the names of its fields, for messages.
    """
    for name, setting, value in settings(config, prefix):
        low, above, high = (setting.get(limit) for limit in ("low", "above", "high"))
        if isinstance(value, tuple):
            if low is not None is not high and not all(low <= entry <= high for entry in value):
                raise ValueError(f"{name} = {list(value)}: each must be from {low} to {high}")
            continue
        if low is above is high is None:
            continue
        if not abs(value) < math.inf:
            raise ValueError(f"{name} = {value} is not a finite number")
        if above is not None and not value > above:
            raise ValueError(f"{name} = {value} must be greater than {above}")
        whole = isinstance(value, int)
        if low is not None is not high and not whole and not low <= value <= high:
            raise ValueError(f"{name} = {value} is not between {low} and {high}")
        if high is not None and value > high:
            raise ValueError(f"{name} = {value} is too large; it must be at most {high}")
        if low is not None and value < low:
            raise ValueError(f"{name} = {value} is too small; it must be at least {low}")


def check_singles(config: "Config") -> None:
    """Checks for invalid values, and pairs of them."""
    if config.seed + config.num_seeds > 2**31:
        raise ValueError(f"seed = {config.seed} is too large; it must be below {2**31}")
    if config.env.privileged_obs and not config.env.obs_indices:
        raise ValueError("env.privileged_obs goes with env.obs_indices, which is empty")
    if config.logging.log_file and not config.logging.log_file.endswith(".log"):
        raise ValueError(f"logging.log_file = {config.logging.log_file!r} must end in .log")
    if not inside(config.logging.log_file):
        raise ValueError(
            f"logging.log_file = {config.logging.log_file!r} lies outside of the run's folder; "
            f"name it relative to that, as in debug.log"
        )
    if config.network.min_std > config.network.max_std:
        raise ValueError(
            f"network.min_std = {config.network.min_std} is above "
            f"network.max_std = {config.network.max_std}"
        )
    if config.ppo.min_learning_rate > config.ppo.max_learning_rate:
        raise ValueError(
            f"ppo.min_learning_rate = {config.ppo.min_learning_rate}: it is above "
            f"ppo.max_learning_rate = {config.ppo.max_learning_rate}. Set it to at most that."
        )
    if not config.network.min_std <= config.network.init_std <= config.network.max_std:
        raise ValueError(
            f"network.init_std = {config.network.init_std} is not between network.min_std = "
            f"{config.network.min_std} and network.max_std = {config.network.max_std}"
        )


def check_kinds(config: "Config") -> None:
    """Checks for choices that do not go together."""
    network, ppo = config.network, config.ppo
    if not network.hidden and network.block == "residual":
        raise ValueError("network.block = residual needs at least one width in network.hidden")
    for name in ("hidden", "critic_hidden"):
        widths = getattr(network, name)
        if network.block == "residual" and len(set(widths)) > 1:
            raise ValueError(
                f"network.block = residual needs blocks of one width, and network.{name} = "
                f"{list(widths)}"
            )
    if network.torso == "shared" and network.critic_keys:
        raise ValueError(
            "network.critic_keys gives the critic an observation of its own, which "
            "network.torso = shared rules out: set it to separate"
        )
    if ppo.value_clipping and ppo.critic != "scalar":
        raise ValueError(
            f"ppo.value_clipping = true needs ppo.critic = scalar, not {ppo.critic}. Use "
            f"ppo.value_clipping = false."
        )
    if network.policies and ppo.critic == "popart":
        raise ValueError(
            "ppo.critic = popart does not support network.policies. Use ppo.critic = scalar with "
            "ppo.normalize_reward = true."
        )
    if ppo.learning_rate_schedule == "adaptive" and ppo.num_epochs * ppo.num_minibatches == 1:
        raise ValueError(
            "ppo.learning_rate_schedule = adaptive reads the divergence before each gradient step, "
            "which is 0 before a rollout's first, and ppo.num_epochs x ppo.num_minibatches = 1 "
            "makes no other: raise one of them, or take another schedule"
        )
    if ppo.reset_each_rollout:
        check_new_episodes(config)
    if len(ppo.term_coefs) not in (0, len(ppo.terms)):
        raise ValueError(
            f"ppo.term_coefs = {list(ppo.term_coefs)} has {len(ppo.term_coefs)} numbers, and "
            f"ppo.terms has {len(ppo.terms)}: give one for each"
        )
    if not all(abs(coef) < math.inf for coef in ppo.term_coefs):
        raise ValueError(f"ppo.term_coefs = {list(ppo.term_coefs)} are not finite numbers")
    if not config.intrinsic.hidden:
        raise ValueError("intrinsic.hidden needs at least one width")


def check_new_episodes(config: "Config") -> None:
    """Check for settings that need episodes to continue in the next rollout."""
    if config.env.curriculum:
        raise ValueError(
            "ppo.reset_each_rollout = true does not support env.curriculum, because its episodes "
            "begin with the parameters of the run's start. Use false."
        )
    if config.env.stagger:
        raise ValueError(
            "ppo.reset_each_rollout = true does not support env.stagger = true, because no episode "
            "continues in the next rollout. Set one of them to false."
        )


def check_products(config: "Config") -> None:
    """Checks that sizes divide each other, and limits the numbers of rows and updates."""
    rows, updates = config.steps_per_update, config.num_updates
    if rows > MOST:
        raise ValueError(
            f"env.num_envs x ppo.rollout_length = {rows} must be at most {MOST}. Reduce either."
        )
    if updates > MOST:
        raise ValueError(
            f"total_timesteps = {config.total_timesteps} needs {updates} updates of env.num_envs x "
            f"ppo.rollout_length = {rows} steps, more than {MOST}. Increase one of these."
        )
    shards = max(config.num_shards, 1)
    if config.env.num_envs % shards:
        raise ValueError(
            f"env.num_envs = {config.env.num_envs} does not split into num_shards = {shards}; "
            f"try {nearest_multiple(config.env.num_envs, shards)}"
        )
    local_envs = config.env.num_envs // shards
    check_stretches(config, local_envs)
    if config.ppo.shuffle == "trajectories":
        if local_envs % config.ppo.num_minibatches:
            raise ValueError(
                f"ppo.shuffle = trajectories deals out whole environments, and env.num_envs = "
                f"{config.env.num_envs} does not split into num_shards x ppo.num_minibatches = "
                f"{shards * config.ppo.num_minibatches}; try env.num_envs = "
                f"{nearest_multiple(config.env.num_envs, shards * config.ppo.num_minibatches)}"
            )
    elif local_envs * config.ppo.rollout_length % config.ppo.num_minibatches:
        step = shards * config.ppo.num_minibatches
        good = nearest_multiple(config.env.num_envs, step)
        raise ValueError(
            f"env.num_envs x ppo.rollout_length = "
            f"{config.env.num_envs * config.ppo.rollout_length} does not split into "
            f"{f'num_shards = {shards} x ' if shards > 1 else ''}ppo.num_minibatches = "
            f"{config.ppo.num_minibatches}; try env.num_envs = {good}"
        )
    check_normalization(config)


def check_normalization(config: "Config") -> None:
    """Check that advantages are normalised over more than one row of all shards."""
    ppo, rows = config.ppo, config.steps_per_update
    if ppo.objective == "imitate":  # which does not use advantages
        return
    if ppo.advantage_normalization == "minibatch" and rows == ppo.num_minibatches > 1:
        raise ValueError(
            f"ppo.num_minibatches = {rows}: a minibatch has one row, and the only advantage of a "
            f"minibatch is normalised to 0. Try ppo.num_minibatches = {rows // 2}, or "
            f"ppo.advantage_normalization = batch or none."
        )
    if ppo.advantage_normalization != "none" and rows == 1:
        raise ValueError(
            "env.num_envs x ppo.rollout_length = 1: the only advantage of a rollout is normalised "
            "to 0. Increase either, or set ppo.advantage_normalization = none."
        )


def check_stretches(config: "Config", local_envs: int) -> None:
    """Checks the sizes of recurrent networks' stretches and curiosity's minibatches."""
    ppo, rows = config.ppo, local_envs * config.ppo.rollout_length
    if config.network.rnn != "none":
        if ppo.rollout_length % ppo.stretch:
            raise ValueError(
                f"ppo.rollout_length = {ppo.rollout_length} does not split into stretches of "
                f"ppo.bptt_length = {ppo.bptt_length}; try "
                f"{nearest_multiple(ppo.rollout_length, ppo.bptt_length)}"
            )
        stretches = rows // ppo.stretch
        if stretches % ppo.num_minibatches:
            raise ValueError(
                f"network.rnn deals out stretches of {ppo.stretch} steps, and the {stretches} "
                f"of a rollout (of a shard) do not split into ppo.num_minibatches = "
                f"{ppo.num_minibatches}; shorten ppo.bptt_length, or change env.num_envs"
            )
    if config.intrinsic.kind in ("icm", "rnd") and rows % config.intrinsic.num_minibatches:
        raise ValueError(
            f"the {rows} steps of a rollout (of a shard) do not split into "
            f"intrinsic.num_minibatches = {config.intrinsic.num_minibatches}"
        )


def nearest_multiple(n: int, step: int) -> int:
    """The positive multiple of `step` that is nearest to `n`."""
    return max(step, round(n / step) * step)
