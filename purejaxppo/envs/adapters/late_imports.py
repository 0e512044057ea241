"""Delay imports that a simulator only needs for drawing until their first use."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from purejaxppo.envs.quiet import PROCESS_LOCK


class LazyModule(ModuleType):
    """A placeholder for a module that is imported at the first access of an attribute."""

    def __getattr__(self, name: str) -> Any:
        """Import the module and return its attribute; `__path__` and the like are missing."""
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_placeholders()
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def lazy_imports(*names: str) -> Iterator[None]:
    """Replace modules by `LazyModule` placeholders for imports inside this context.

    Modules that are already imported are not replaced.

    Args:
        names: modules, and their submodules that are imported by name.
    """
    with PROCESS_LOCK:
        late = {name: LazyModule(name) for name in names if name not in sys.modules}
        for name, module in late.items():
            parent, _, child = name.rpartition(".")
            if parent in late:
                setattr(late[parent], child, module)
        sys.modules.update(late)
        try:
            yield
        finally:
            _remove_placeholders()


def _remove_placeholders() -> None:
    """Remove all placeholders from `sys.modules`; existing references to them stay valid."""
    for name, module in list(sys.modules.items()):
        if type(module) is LazyModule:
            del sys.modules[name]
