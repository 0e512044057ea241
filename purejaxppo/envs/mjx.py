"""MuJoCo MJX among several processes, for the adapters whose simulators run on it."""

from typing import Any

import jax

FIELDS: dict[str, tuple[str, ...]] = {
    "mass": ("body_mass", "body_inertia", "body_subtreemass"),
    "gear": ("actuator_gear",),
    "damping": ("dof_damping",),
    "armature": ("dof_armature",),
    "stiffness": ("jnt_stiffness",),
    "friction": ("geom_friction", "pair_friction"),
    "gravity": ("opt.gravity",),
}
"""What of a model can be multiplied while it runs, and where it is. A mass is that of all bodies,
with their inertias: of denser bodies of the same shape."""


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
