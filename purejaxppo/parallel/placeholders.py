"""Structures of trees as plain data, which can be read without the classes of their nodes."""

import functools
import importlib
from typing import Any

import jax


class Placeholder:
    """A node of a tree in place of a simulator's own class, which would have to be imported.

    It has the same children under the same names.
    """

    def __init__(self, names: tuple, children: tuple) -> None:
        """Names are those of JAX's key paths."""
        self.names, self.children = names, children

    def __getattr__(self, name: str) -> Any:
        for key, child in zip(self.__dict__["names"], self.__dict__["children"], strict=True):
            if getattr(key, "name", None) == name:
                return child
        raise AttributeError(name)


jax.tree_util.register_pytree_with_keys(
    Placeholder,
    lambda shell: (list(zip(shell.names, shell.children, strict=True)), shell.names),
    lambda names, children: Placeholder(names, tuple(children)),
    lambda shell: (shell.children, shell.names),
)

OURS = ("builtins", "collections", "purejaxppo", "jax", "optax", "flax")
"""Packages whose classes of trees are imported in any case."""


def packed(tree: Any) -> Any:
    """The structure of a tree as plain data: None for a leaf, else a node.

    A node is (module, class, its static data, names of children, children).
    """
    if tree.node_data() is None:
        return None
    kind, data = tree.node_data()
    children = tree.children()
    names: tuple = ()
    if kind.__module__.partition(".")[0] not in OURS:
        one = _structure(kind, data, [jax.tree.structure(0)] * len(children))
        flat = jax.tree_util.tree_flatten_with_path(one.unflatten([0] * len(children)))[0]
        names = tuple(path[0] for path, _ in flat)
    return kind.__module__, kind.__qualname__, data, names, [packed(child) for child in children]


def unpacked(node: Any, *, foreign: bool) -> Any:
    """The structure that `packed` described, without simulators' classes unless `foreign`."""
    if node is None:
        return jax.tree.structure(0)
    module, name, data, names, packed_children = node
    children = [unpacked(child, foreign=foreign) for child in packed_children]
    if module.partition(".")[0] not in OURS and not foreign:
        return _structure(Placeholder, names, children)
    if (module, name) == ("builtins", "NoneType"):
        return jax.tree.structure(None)
    kind = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    return _structure(kind, data, children)


def _structure(kind: Any, data: Any, children: list) -> Any:
    known = jax.tree_util.default_registry
    return jax.tree_util.PyTreeDef.from_node_data_and_children(known, (kind, data), children)
