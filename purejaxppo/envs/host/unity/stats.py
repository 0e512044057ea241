"""The earlier path of `envs.engines.unity.stats`, which configs of version 0.2 name."""

from purejaxppo.envs.engines.unity.stats import Stats as Stats  # noqa: PLC0414 - re-exported
