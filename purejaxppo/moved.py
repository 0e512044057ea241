"""Old import paths and names, which work until version 0.4."""

import importlib
import importlib.abc
import importlib.machinery
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "agents.action_masks": "agents.networks.action_masks",
    "agents.actor_critic": "agents.networks.actor_critic",
    "agents.cells": "agents.networks.cells",
    "agents.convolutions": "agents.networks.convolutions",
    "agents.distributions": "agents.networks.distributions",
    "agents.encoders": "agents.networks.encoders",
    "agents.gated_scan": "agents.networks.gated_scan",
    "agents.intrinsic": "agents.extras.intrinsic",
    "agents.products": "agents.networks.products",
    "agents.symmetry": "agents.extras.symmetry",
    "agents.terms": "agents.extras.auxiliary_losses",
    "agents.torsos": "agents.networks.torsos",
    "commands": "cli",
    "envs.brax": "envs.adapters.brax",
    "envs.craftax": "envs.adapters.craftax",
    "envs.dummy": "envs.adapters.dummy",
    "envs.gymnax": "envs.adapters.gymnax",
    "envs.host.engine": "envs.engines.process",
    "envs.host.errors": "envs.host.workers.errors",
    "envs.host.factory": "envs.host.workers.factory",
    "envs.host.game_env": "envs.engines.game_env",
    "envs.host.godot": "envs.engines.godot.adapter",
    "envs.host.godot_game": "envs.engines.godot.game",
    "envs.host.godot_games": "envs.engines.godot.games",
    "envs.host.godot_spaces": "envs.engines.godot.spaces",
    "envs.host.godot_wire": "envs.engines.godot.wire",
    "envs.host.gym_spaces": "envs.host.workers.gym_spaces",
    "envs.host.keeper": "envs.host.workers.supervisor",
    "envs.host.masks": "envs.host.workers.masks",
    "envs.host.pettingzoo_world": "envs.host.workers.pettingzoo_world",
    "envs.host.pixels": "envs.host.workers.pixels",
    "envs.host.resolution": "envs.host.workers.resolution",
    "envs.host.returned": "envs.host.workers.returned",
    "envs.host.unity": "envs.engines.unity",
    "envs.host.worker": "envs.host.workers.worker",
    "envs.jaxmarl": "envs.adapters.jaxmarl",
    "envs.jumanji": "envs.adapters.jumanji",
    "envs.late_imports": "envs.adapters.late_imports",
    "envs.mjx": "envs.adapters.mjx",
    "envs.oscillator": "envs.adapters.oscillator",
    "envs.own": "envs.custom",
    "envs.particles": "envs.adapters.particles",
    "envs.pgx": "envs.adapters.pgx",
    "envs.playground": "envs.adapters.playground",
    "envs.xminigrid": "envs.adapters.xminigrid",
    "episodes": "runs.episodes",
    "evaluation": "runs.evaluation",
    "library": "runs.library",
    "pictures": "video",
    "pure_training": "runs.pure_training",
    "runs.cli": "cli.parser",
    "runs.sinks": "runs.loggers",
    "runs.usage": "cli.usage",
    "templates": "cli.templates",
    "trained_agent": "runs.agent",
}
"""Old path -> new path, without `purejaxppo.`. A package includes its modules."""
RENAMED = {"Moment": "CallbackContext", "Term": "AuxiliaryLoss"}
"""Old name -> new name of what the package `purejaxppo` exports."""


class OldPaths(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook: an import of an old path loads the module at its new path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for an old path; None for others."""
        return importlib.machinery.ModuleSpec(fullname, self) if new_path(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return an empty module; `exec_module` fills it."""
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Copy the names of the module at the new path into the module."""
        current = importlib.import_module(new_path(module.__name__))
        module.__path__ = []
        module.__dict__.update({k: v for k, v in vars(current).items() if not k.startswith("__")})


def new_path(name: str) -> str:
    """Return the new path of a module; "" if it has not moved.

    Args:
        name: full path, such as `purejaxppo.agents.terms`.
    """
    package, _, old = name.partition(".")
    for old_prefix, current in MOVED.items():
        if package == "purejaxppo" and (old == old_prefix or old.startswith(f"{old_prefix}.")):
            return f"{package}.{current}{old.removeprefix(old_prefix)}"
    return ""
