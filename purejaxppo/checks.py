"""What settings must be, by themselves and together: `Config` asks when it is made."""

import math
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purejaxppo.config import Config

MINIMA = {
    "env.num_envs": 1,
    "env.max_episode_steps": 0,
    "ppo.rollout_length": 1,
    "ppo.num_minibatches": 1,
    "ppo.num_epochs": 1,
    "ppo.learning_rate": 0,
    "ppo.ent_coef": 0,
    "ppo.vf_coef": 0,
    "ppo.max_grad_norm": 0,
    "ppo.kl_coef": 0,
    "ppo.weight_decay": 0,
    "ppo.learning_rate_warmup": 0,
    "ppo.bptt_length": 0,
    "ppo.intrinsic_coef": 0,
    "ppo.symmetry_coef": 0,
    "network.memory_size": 1,
    "network.memory_span": 0,
    "intrinsic.features": 1,
    "intrinsic.num_minibatches": 1,
    "intrinsic.num_epochs": 1,
    "imitate.updates": 1,
    "eval.num_episodes": 0,
    "eval.interval": 0,
    "eval.max_steps": 1,
    "checkpoint.interval": 0,
    "checkpoint.keep": 1,
    "logging.interval": 0,
    "total_timesteps": 1,
    "seed": 0,
    "num_seeds": 1,
    "num_shards": 0,
    "devices": 0,
}
WIDTHS = (
    "network.hidden",
    "network.critic_hidden",
    "network.part_hidden",
    "intrinsic.hidden",
)
POSITIVE = (
    "ppo.target_kl",
    "ppo.bootstrap_limit",
    "intrinsic.learning_rate",
    "ppo.clip_eps",
    "ppo.vf_clip_eps",
    "ppo.adam_eps",
    "ppo.clip_obs",
    "ppo.clip_reward",
    "network.min_std",
    "checkpoint.max_seconds",
)


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
    """Whether a path stays in the folder that it is relative to."""
    drives = (PurePosixPath(path), PureWindowsPath(path))
    return not any(p.root or p.drive or ".." in p.parts for p in drives)


def check_ranges(config: "Config") -> None:
    """Numbers that are too small, too large, or none."""
    for name, minimum in MINIMA.items():
        value = get(config, name)
        if not value < math.inf:
            raise ValueError(f"{name} = {value} is not a finite number")
        if value < minimum:
            raise ValueError(f"{name} = {value} is too small; it must be at least {minimum}")
    for name in POSITIVE:
        if not 0 < get(config, name) < math.inf:
            raise ValueError(f"{name} = {get(config, name)} must be finite and greater than 0")
    if config.seed + config.num_seeds > 2**31:
        raise ValueError(f"seed = {config.seed} is too large; it must be below {2**31}")


def check_singles(config: "Config") -> None:
    """Values, and pairs of them, that make no sense."""
    for name in ("ppo.gamma", "ppo.gae_lambda"):
        if not 0 <= get(config, name) <= 1:
            raise ValueError(f"{name} = {get(config, name)} is not between 0 and 1")
    if config.env.full_state and not config.env.visible:
        raise ValueError("env.full_state goes with env.visible, which is empty")
    if config.ppo.learning_rate_warmup > 1:
        raise ValueError(
            f"ppo.learning_rate_warmup = {config.ppo.learning_rate_warmup} is a part of the run, "
            f"0 to 1"
        )
    if config.logging.log_file and not config.logging.log_file.endswith(".log"):
        raise ValueError(f"logging.log_file = {config.logging.log_file!r} must end in .log")
    if not inside(config.logging.log_file):
        raise ValueError(
            f"logging.log_file = {config.logging.log_file!r} lies outside of the run's folder; "
            f"name it relative to that, as in debug.log"
        )
    for name in WIDTHS:
        if any(width < 1 for width in get(config, name)):
            raise ValueError(f"{name} = {list(get(config, name))} has a width below 1")
    if config.network.min_std > config.network.max_std:
        raise ValueError(
            f"network.min_std = {config.network.min_std} is above "
            f"network.max_std = {config.network.max_std}"
        )
    if not config.network.min_std <= config.network.init_std <= config.network.max_std:
        raise ValueError(
            f"network.init_std = {config.network.init_std} is not between network.min_std = "
            f"{config.network.min_std} and network.max_std = {config.network.max_std}"
        )


def check_kinds(config: "Config") -> None:
    """Choices that do not go together."""
    network, ppo = config.network, config.ppo
    if not network.hidden and network.layers == "residual":
        raise ValueError("network.layers = residual needs at least one width in network.hidden")
    for name in ("hidden", "critic_hidden"):
        widths = getattr(network, name)
        if network.layers == "residual" and len(set(widths)) > 1:
            raise ValueError(
                f"network.layers = residual needs blocks of one width, and network.{name} = "
                f"{list(widths)}"
            )
    if network.torso == "shared" and network.critic_keys:
        raise ValueError(
            "network.critic_keys gives the critic an observation of its own, which "
            "network.torso = shared rules out: set it to separate"
        )
    if ppo.value_clipping and ppo.critic != "scalar":
        raise ValueError(
            f"ppo.value_clipping is for ppo.critic = scalar, and it is {ppo.critic}: leave it off"
        )
    if network.policies and ppo.critic == "popart":
        raise ValueError(
            "ppo.critic = popart is for one policy, and network.policies names more: use "
            "scalar with ppo.normalize_reward"
        )
    if ppo.kl_rate and ppo.num_epochs * ppo.num_minibatches == 1:
        raise ValueError(
            "ppo.kl_rate reads the divergence before each gradient step, which is 0 before a "
            "rollout's first, and ppo.num_epochs x ppo.num_minibatches = 1 makes no other: raise "
            "one of them, or leave kl_rate off"
        )
    if ppo.dual_clip <= 1:
        raise ValueError(f"ppo.dual_clip = {ppo.dual_clip} must be above 1")
    if ppo.rollout_start == "reset" and config.env.curriculum:
        raise ValueError(
            "ppo.rollout_start = reset begins episodes with the parameters of the run's start, "
            "and env.curriculum changes them: use continue"
        )
    if not config.intrinsic.hidden:
        raise ValueError("intrinsic.hidden needs at least one width")


def check_products(config: "Config") -> None:
    """Sizes that must divide each other."""
    shards = max(config.num_shards, 1)
    if config.env.num_envs % shards:
        raise ValueError(
            f"env.num_envs = {config.env.num_envs} does not split into num_shards = {shards}; "
            f"try {nearest_multiple(config.env.num_envs, shards)}"
        )
    local_envs = config.env.num_envs // shards
    check_stretches(config, local_envs)
    if config.env.double_buffer and local_envs % 2:
        raise ValueError(
            f"env.double_buffer divides the environments into two halves, and env.num_envs = "
            f"{config.env.num_envs} does not split into 2 x num_shards = {2 * shards}; try "
            f"env.num_envs = {nearest_multiple(config.env.num_envs, 2 * shards)}"
        )
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


def check_stretches(config: "Config", local_envs: int) -> None:
    """What recurrent networks' stretches and curiosity's minibatches must divide."""
    ppo, rows = config.ppo, local_envs * config.ppo.rollout_length
    if config.network.memory != "none":
        if ppo.rollout_length % ppo.stretch:
            raise ValueError(
                f"ppo.rollout_length = {ppo.rollout_length} does not split into stretches of "
                f"ppo.bptt_length = {ppo.bptt_length}; try "
                f"{nearest_multiple(ppo.rollout_length, ppo.bptt_length)}"
            )
        stretches = rows // ppo.stretch
        if stretches % ppo.num_minibatches:
            raise ValueError(
                f"network.memory deals out stretches of {ppo.stretch} steps, and the {stretches} "
                f"of a rollout (of a shard) do not split into ppo.num_minibatches = "
                f"{ppo.num_minibatches}; shorten ppo.bptt_length, or change env.num_envs"
            )
    if config.intrinsic.kind != "none" and rows % config.intrinsic.num_minibatches:
        raise ValueError(
            f"the {rows} steps of a rollout (of a shard) do not split into "
            f"intrinsic.num_minibatches = {config.intrinsic.num_minibatches}"
        )


def get(config: Any, dotted: str) -> Any:
    """A setting by its dotted name."""
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def nearest_multiple(n: int, step: int) -> int:
    """The positive multiple of `step` that is nearest to `n`."""
    return max(step, round(n / step) * step)
