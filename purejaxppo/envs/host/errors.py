"""Errors of simulators on the host, without JAX."""

from purejaxppo.config.references import LoadError


class MakeError(LoadError):
    """A description names something that does not exist, is not installed, or cannot be used."""
