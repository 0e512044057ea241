"""Packages that a simulator imports for pictures: imported when something first asks for them."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from purejaxppo.envs.quiet import CHANGING_PROCESS


class Late(ModuleType):
    """Stands in for a module, which is imported when an attribute is first asked for."""

    def __getattr__(self, name: str) -> Any:
        """The module's attribute. Python's own, as `__path__`, are absent: they import nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        _make_way()
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def imported_late(*names: str) -> Iterator[None]:
    """Gives imports inside a `Late` for each of these modules that nobody has imported yet.

    Args:
        names: modules, and the submodules of them that are imported by name.
    """
    with CHANGING_PROCESS:
        late = {name: Late(name) for name in names if name not in sys.modules}
        for name, module in late.items():
            parent, _, own = name.rpartition(".")
            if parent in late:
                setattr(late[parent], own, module)
        sys.modules.update(late)
        try:
            yield
        finally:
            _make_way()


def _make_way() -> None:
    """Takes all `Late`s from the modules that Python finds; who has one keeps it."""
    for name, module in list(sys.modules.items()):
        if type(module) is Late:
            del sys.modules[name]
