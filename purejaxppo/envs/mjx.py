"""MuJoCo MJX among several processes, for the adapters whose simulators run on it."""

from typing import Any

import jax


class _OwnDevices:
    """JAX, of whose devices only this process's are seen."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self, backend: str | None = None) -> list[jax.Device]:
        """As `jax.devices`."""
        return jax.local_devices(backend=backend)


def use_own_devices() -> None:
    """Lets MJX make its arrays here; it takes the first device of all, which may be elsewhere."""
    if jax.process_count() > 1:
        from mujoco.mjx._src import io

        io.jax = _OwnDevices()
