"""purejaxppo: PPO with rollout, advantages and update in one compiled program."""

__version__ = "0.1.0"
