"""Checks of single settings and of combinations, run by `Config.__post_init__`."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from purejaxppo.config.hints import show
from purejaxppo.config.references import CodeRef, is_reference

if TYPE_CHECKING:
    from purejaxppo.config.schema import Config, PPOConfig


MAX_COUNT = 2**31 - 1
"""Largest number of rows in a rollout, and of updates in a run; both are int32."""
FEW_UPDATES = 10
"""Smallest number of updates of a run without a warning."""


def check(config: "Config") -> None:
    """Check all fields of a config, alone and in combination.

    Raises:
        ValueError: a field, or a combination of fields, is invalid.
    """
    check_ranges(config)
    check_values(config)
    check_kinds(config)
    check_sizes(config)


def is_inside(path: str) -> bool:
    """Return True for a relative path that does not leave its base folder."""
    drives = (PurePosixPath(path), PureWindowsPath(path))
    return not any(p.root or p.drive or ".." in p.parts for p in drives)


def settings(config: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield (dotted name, metadata, value) of each field.

    The metadata are the arguments of `schema.setting`. `free` and `swept` of a section apply to its
    fields.
    """
    for field in fields(config):
        value, metadata = getattr(config, field.name), dict(field.metadata)
        if not is_dataclass(value) or isinstance(value, CodeRef):
            yield f"{prefix}{field.name}", {"free": False, "swept": True, **metadata}, value
            continue
        for name, inner, inner_value in settings(value, f"{prefix}{field.name}."):
            free = inner["free"] or metadata["free"]
            swept = inner["swept"] and metadata["swept"]
            yield name, inner | {"free": free, "swept": swept}, inner_value


def without_effect(configs: Sequence["Config"]) -> list[str]:
    """Return a warning for each changed setting that has no effect.

    Args:
        configs: the config of a run, or the configs of all runs of a sweep. A setting that has an
            effect in one of them is left out.
    """
    lines, values = [], [{name: value for name, _, value in settings(c)} for c in configs]
    for name, metadata, default in settings(type(configs[0])()):
        needs = metadata.get("needs")
        changed = dict.fromkeys(show(v[name]) for v in values if v[name] != default)
        if needs and changed and not any(is_met(needs, v) for v in values):
            remedy = f"Set {needs.replace(' = ', ' to ')}" if "=" in needs else f"It needs {needs}"
            lines.append(f"{name} = {', '.join(changed)} has no effect. {remedy}.")
    return lines


def short_run(config: "Config") -> list[str]:
    """Return a warning if a run has fewer than `FEW_UPDATES` updates."""
    if config.num_updates >= FEW_UPDATES:
        return []
    return [
        f"total_timesteps = {config.total_timesteps:,} is less than {FEW_UPDATES} updates of "
        f"{config.steps_per_update:,} steps (env.num_envs = {config.env.num_envs:,} x "
        f"ppo.rollout_length = {config.ppo.rollout_length:,}), too few to learn. Reduce "
        f"env.num_envs or ppo.rollout_length, or increase total_timesteps."
    ]


def is_met(needs: str, values: Mapping[str, Any]) -> bool:
    """Return True if one of the alternatives in `needs` is met; see `schema.setting`.

    Custom code meets any need, because it may use every setting.

    Args:
        needs: alternatives, such as "ppo.objective = kl or clip_kl".
        values: all settings by dotted name.
    """
    name = ""
    for alternative in re.split(", | or ", needs):
        match alternative.split():
            case [name, ">", limit]:
                met = values[name] > float(limit)
            case [field] if field in values:
                met = bool(values[field])
            case [*start, word]:
                name = start[0] if start else name
                met = show(values[name]) == word or is_reference(show(values[name]))
        if met:
            return True
    return False


def check_ranges(config: Any, prefix: str = "") -> None:
    """Raise ValueError if a number is too small, too large, or not finite.

    Args:
        config: a dataclass of `schema.setting` fields and of sections.
        prefix: prepended to field names in messages.
    """
    for name, setting, value in settings(config, prefix):
        low, above, high = (setting.get(limit) for limit in ("low", "above", "high"))
        if isinstance(value, tuple):
            if low is not None is not high and not all(low <= entry <= high for entry in value):
                raise ValueError(f"{name} = {list(value)}: each must be from {low} to {high}.")
            continue
        if low is above is high is None:
            continue
        if not abs(value) < math.inf:
            raise ValueError(f"{name} = {value}: must be a finite number.")
        if above is not None and not value > above:
            raise ValueError(f"{name} = {value}: must be greater than {above}.")
        is_whole = isinstance(value, int)
        if low is not None is not high and not is_whole and not low <= value <= high:
            raise ValueError(f"{name} = {value}: must be from {low} to {high}.")
        if high is not None and value > high:
            raise ValueError(f"{name} = {value}: must be at most {high}.")
        if low is not None and value < low:
            raise ValueError(f"{name} = {value}: must be at least {low}.")


def check_values(config: "Config") -> None:
    """Raise ValueError for settings that are invalid alone or together with one other setting."""
    if config.seed + config.num_seeds > 2**31:
        raise ValueError(
            f"seed = {config.seed}: seed + num_seeds must be at most {2**31}. Use a smaller seed."
        )
    if config.env.privileged_obs and not config.env.obs_indices:
        raise ValueError(
            "env.privileged_obs = true requires env.obs_indices, which is empty. Set it to the "
            "indices that the policy observes."
        )
    check_obs_parts(config.env.obs_parts)
    if config.init_from and config.pretrain.teacher:
        raise ValueError("init_from and pretrain.teacher exclude each other. Use one of them.")
    if config.init_from and not config.init_parts:
        raise ValueError("init_parts is empty: init_from needs policy, critic or normalizers.")
    if config.logging.log_file and not config.logging.log_file.endswith(".log"):
        raise ValueError(f"logging.log_file = {config.logging.log_file}: must end in .log.")
    if not is_inside(config.logging.log_file):
        raise ValueError(
            f"logging.log_file = {config.logging.log_file}: must be inside the run folder. Use a "
            f"path relative to it, such as debug.log."
        )
    if config.network.min_std > config.network.max_std:
        raise ValueError(
            f"network.min_std = {config.network.min_std}: must be at most network.max_std = "
            f"{config.network.max_std}."
        )
    if config.ppo.min_learning_rate > config.ppo.max_learning_rate:
        raise ValueError(
            f"ppo.min_learning_rate = {config.ppo.min_learning_rate}: must be at most "
            f"ppo.max_learning_rate = {config.ppo.max_learning_rate}."
        )
    if not config.network.min_std <= config.network.init_std <= config.network.max_std:
        raise ValueError(
            f"network.init_std = {config.network.init_std}: must be from network.min_std = "
            f"{config.network.min_std} to network.max_std = {config.network.max_std}."
        )


def check_obs_parts(parts: Mapping[str, Sequence[int]]) -> None:
    """Raise ValueError unless each entry of a vector, from 0 on, is in one part."""
    found: list[tuple[int, int, str]] = []
    for name, indices in parts.items():
        setting = f"env.obs_parts.{name} = {list(indices)}"
        pairs = list(zip(indices[::2], indices[1::2], strict=False))
        if len(indices) % 2 or not pairs or not all(0 <= a < b <= 2**24 for a, b in pairs):
            raise ValueError(
                f"{setting}: must be [first, last + 1], or several such pairs in one list."
            )
        if name == "action_mask":
            raise ValueError(
                f"{setting}: the name action_mask is reserved for action masks. Use another name."
            )
        found += [(first, stop, name) for first, stop in pairs]
    end, before = 0, ""
    for first, stop, name in sorted(found):
        if first < end:
            raise ValueError(f"env.obs_parts: entry {first} is in {before} and in {name}.")
        if first > end:
            raise ValueError(f"env.obs_parts: entry {end} is in no part. Add it to one.")
        end, before = stop, name


def check_adaptive_rate(ppo: "PPOConfig") -> None:
    """Raise ValueError if the KL of an update cannot control the learning rate."""
    if ppo.num_epochs * ppo.num_minibatches == 1:
        raise ValueError(
            "ppo.learning_rate_schedule = adaptive requires several gradient steps per update, but "
            "ppo.num_epochs x ppo.num_minibatches = 1. Increase either, or use another schedule."
        )
    if ppo.early_stop_unit == "episode":
        raise ValueError(
            "ppo.early_stop_unit = episode is not supported with ppo.learning_rate_schedule = "
            "adaptive, because both use ppo.target_kl. Use another schedule."
        )


def check_kinds(config: "Config") -> None:
    """Raise ValueError for settings that cannot be combined."""
    network, ppo = config.network, config.ppo
    if not network.hidden and network.block == "residual":
        raise ValueError(
            "network.hidden is empty: network.block = residual requires at least one width."
        )
    for name in ("hidden", "critic_hidden"):
        widths = getattr(network, name)
        if network.block == "residual" and len(set(widths)) > 1:
            raise ValueError(
                f"network.{name} = {list(widths)}: network.block = residual requires equal widths. "
                f"Use equal widths, or network.block = plain."
            )
    if network.torso == "shared" and network.critic_keys:
        raise ValueError(
            "network.torso = shared does not support network.critic_keys, because policy and "
            "critic share one observation. Use network.torso = separate."
        )
    if ppo.value_clipping and ppo.critic != "scalar":
        raise ValueError(
            f"ppo.value_clipping = true requires ppo.critic = scalar, not {ppo.critic}. Use "
            f"ppo.value_clipping = false."
        )
    if network.policies and ppo.critic == "popart":
        raise ValueError(
            "ppo.critic = popart does not support network.policies. Use ppo.critic = scalar with "
            "ppo.normalize_reward = true."
        )
    if ppo.learning_rate_schedule == "adaptive":
        check_adaptive_rate(ppo)
    if ppo.reset_each_rollout:
        check_continuing_episodes(config)
    if len(ppo.term_coefs) not in (0, len(ppo.terms)):
        raise ValueError(
            f"ppo.term_coefs = {list(ppo.term_coefs)}: requires one number per auxiliary loss, and "
            f"ppo.terms has {len(ppo.terms)}."
        )
    if not all(abs(coef) < math.inf for coef in ppo.term_coefs):
        raise ValueError(
            f"ppo.term_coefs = {list(ppo.term_coefs)}: coefficients of auxiliary losses must be "
            f"finite."
        )
    if not config.intrinsic.hidden:
        raise ValueError("intrinsic.hidden is empty: requires at least one width.")


def check_continuing_episodes(config: "Config") -> None:
    """Raise ValueError for settings that require episodes to continue in the next rollout."""
    if config.env.curriculum:
        raise ValueError(
            "ppo.reset_each_rollout = true does not support env.curriculum, because episodes would "
            "always use the curriculum's initial values. Use ppo.reset_each_rollout = false."
        )
    if config.env.stagger:
        raise ValueError(
            "ppo.reset_each_rollout = true does not support env.stagger = true, because no episode "
            "continues in the next rollout. Set one of them to false."
        )


def check_sizes(config: "Config") -> None:
    """Raise ValueError for sizes that are too large or do not divide each other."""
    rows, updates = config.steps_per_update, config.num_updates
    if rows > MAX_COUNT:
        raise ValueError(
            f"env.num_envs x ppo.rollout_length = {rows}: must be at most {MAX_COUNT}. Reduce "
            f"either."
        )
    if updates > MAX_COUNT:
        raise ValueError(
            f"total_timesteps = {config.total_timesteps} needs {updates} updates of env.num_envs x "
            f"ppo.rollout_length = {rows} steps, more than {MAX_COUNT}. Increase one of these."
        )
    shards = max(config.num_shards, 1)
    if config.env.num_envs % shards:
        raise ValueError(
            f"env.num_envs = {config.env.num_envs}: must be divisible by num_shards = {shards}. "
            f"Try env.num_envs = {nearest_multiple(config.env.num_envs, shards)}."
        )
    local_envs = config.env.num_envs // shards
    check_sequences(config, local_envs)
    if config.ppo.epoch_fraction < 1 and config.ppo.shuffle == "trajectories":
        raise ValueError(
            f"ppo.epoch_fraction = {config.ppo.epoch_fraction} requires ppo.shuffle = transitions."
        )
    if config.ppo.shuffle == "trajectories":
        if local_envs % config.ppo.num_minibatches:
            raise ValueError(
                f"env.num_envs = {config.env.num_envs}: ppo.shuffle = trajectories requires a "
                f"multiple of num_shards x ppo.num_minibatches = "
                f"{shards * config.ppo.num_minibatches}. Try env.num_envs = "
                f"{nearest_multiple(config.env.num_envs, shards * config.ppo.num_minibatches)}."
            )
    elif local_envs * config.ppo.rollout_length % config.ppo.num_minibatches:
        step = shards * config.ppo.num_minibatches
        suggestion = nearest_multiple(config.env.num_envs, step)
        divisor = f"num_shards = {shards} x " if shards > 1 else ""
        raise ValueError(
            f"env.num_envs x ppo.rollout_length = {rows} is not divisible by {divisor}"
            f"ppo.num_minibatches = {config.ppo.num_minibatches}. Try env.num_envs = {suggestion}."
        )
    check_normalization(config)


def check_normalization(config: "Config") -> None:
    """Raise ValueError if advantages are normalised over a single row."""
    ppo, rows = config.ppo, config.steps_per_update
    if ppo.objective == "imitate":  # which does not use advantages
        return
    if ppo.advantage_normalization == "minibatch" and rows == ppo.num_minibatches > 1:
        raise ValueError(
            f"ppo.num_minibatches = {rows}: each minibatch has only one row, and one advantage "
            f"cannot be normalised. Try ppo.num_minibatches = {rows // 2}, or "
            f"ppo.advantage_normalization = batch or none."
        )
    if ppo.advantage_normalization != "none" and rows == 1:
        raise ValueError(
            "env.num_envs x ppo.rollout_length = 1: one advantage cannot be normalised. "
            "Increase either, or use ppo.advantage_normalization = none."
        )


def check_sequences(config: "Config", local_envs: int) -> None:
    """Raise ValueError if sequences or minibatches do not divide a rollout of a shard."""
    ppo, rows = config.ppo, local_envs * config.ppo.rollout_length
    if config.network.rnn != "none":
        if ppo.rollout_length % ppo.sequence_length:
            raise ValueError(
                f"ppo.rollout_length = {ppo.rollout_length}: must be divisible by "
                f"ppo.bptt_length = {ppo.bptt_length}. Try ppo.rollout_length = "
                f"{nearest_multiple(ppo.rollout_length, ppo.bptt_length)}."
            )
        sequences = rows // ppo.sequence_length
        if sequences % ppo.num_minibatches:
            raise ValueError(
                f"ppo.num_minibatches = {ppo.num_minibatches}: must divide the {sequences} "
                f"sequences of {ppo.sequence_length} steps in a rollout (of one shard). Reduce "
                f"ppo.bptt_length, or change env.num_envs."
            )
    if config.intrinsic.kind in ("icm", "rnd") and rows % config.intrinsic.num_minibatches:
        raise ValueError(
            f"intrinsic.num_minibatches = {config.intrinsic.num_minibatches}: must divide the "
            f"{rows} steps of a rollout (of one shard)."
        )


def nearest_multiple(n: int, step: int) -> int:
    """Return the positive multiple of `step` that is nearest to `n`."""
    return max(step, round(n / step) * step)
