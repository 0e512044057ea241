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
"""Paths of a model's numbers that can be multiplied, by parameter name. `mass` multiplies the mass
and the inertia of every body, as for denser bodies of the same shape."""


class _OwnDevices:
    """The module `jax` with the devices of this process only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self, backend: str | None = None) -> list[jax.Device]:
        """The local devices, in place of `jax.devices`."""
        return jax.local_devices(backend=backend)


def use_own_devices() -> None:
    """Makes MJX use this process's devices, not the first of all, which may be another's."""
    if jax.process_count() > 1:
        from mujoco.mjx._src import io

        io.jax = _OwnDevices()
