"""Errors of simulators on the host, without JAX."""


class MakeError(ValueError):
    """A description names something that does not exist, is not installed, or cannot be used."""
