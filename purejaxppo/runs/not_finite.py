"""Agents that cannot be trained further, and the message about numbers that are not finite."""

from purejaxppo.config.schema import Config


class NotFiniteError(ValueError):
    """No agent is left to train: the numbers are not finite, or every step diverges."""


def what_was_lost(config: Config, env_steps: int, saved: int | None) -> str:
    """Describes an agent that is no longer finite, of which nothing is saved.

    Args:
        config: of the run.
        env_steps: environment steps now.
        saved: environment steps of the last finite save, None if there is none.
    """
    ppo = config.ppo
    kept = (
        f"the last finite save, at {saved:,} steps, is kept, from where the same command "
        "would break again"
        if saved
        else "nothing had been saved before"
    )
    limit = (
        f"or ppo.max_grad_norm (now {ppo.max_grad_norm:g})"
        if ppo.max_grad_norm
        else "and a ppo.max_grad_norm (now 0, which is no limit)"
    )
    return (
        f"after {env_steps:,} steps the agent's parameters, outputs or gradients "
        f"are not finite: {kept}; try a smaller ppo.learning_rate (now {ppo.learning_rate:g}) "
        f"{limit}"
    )
