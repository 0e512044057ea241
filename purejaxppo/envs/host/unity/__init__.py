"""The earlier place of `envs.engines.unity`; configs name `stats` by it."""
