"""Specifications of Gymnasium environments."""

from purejaxppo.config.references import absolute
from purejaxppo.envs.host.workers.factory import GymnasiumSpec, wrapper_calls


def make_spec(name, wrappers=(), options=None, limit=0, *, pickled=b"", **settings):
    """Return the spec that `gymnasium.make` of the package would build."""
    name = name if pickled else absolute(name)
    calls = tuple(wrapper_calls(wrappers))
    return GymnasiumSpec(name, calls, dict(options or {}), limit, pickled=pickled, **settings)
