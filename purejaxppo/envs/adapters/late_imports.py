"""Packages that a simulator imports for pictures: imported when something first asks for them."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from purejaxppo.envs.quiet import PROCESS_LOCK


class LazyModule(ModuleType):
    """Stands in for a module, which is imported when an attribute is first asked for."""

    def __getattr__(self, name: str) -> Any:
        """The module's attribute. Python's own, as `__path__`, are absent: they import nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_placeholders()
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def lazy_imports(*names: str) -> Iterator[None]:
    """Give imports inside a `LazyModule` for each of these modules that nobody has imported yet.

    Args:
        names: modules, and the submodules of them that are imported by name.
    """
    with PROCESS_LOCK:
        late = {name: LazyModule(name) for name in names if name not in sys.modules}
        for name, module in late.items():
            parent, _, own = name.rpartition(".")
            if parent in late:
                setattr(late[parent], own, module)
        sys.modules.update(late)
        try:
            yield
        finally:
            _remove_placeholders()


def _remove_placeholders() -> None:
    """Take all `LazyModule`s from the modules that Python finds; who has one keeps it."""
    for name, module in list(sys.modules.items()):
        if type(module) is LazyModule:
            del sys.modules[name]
