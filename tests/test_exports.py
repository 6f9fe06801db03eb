"""Every module says which of its names are public, and the names are there."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import forwardpass

SOURCE = Path(forwardpass.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at its top level."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def public_names(tree: ast.Module) -> list[str]:
    """Return the names in a module's one ``__all__``."""
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]
    ]
    return list(names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_module_lists_its_public_names(path: Path) -> None:
    """A module has a ``__all__`` of names that exist, and everything public it defines stands in it.

    Commands are reached through their group and need not stand there.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = set(public_names(tree))
    assert public <= bound_names(tree)
    classes_and_functions = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not any(".command" in ast.unparse(d) or ".group" in ast.unparse(d) for d in node.decorator_list)
    }
    assert classes_and_functions <= public


def test_modules_take_from_each_other_what_is_public() -> None:
    """A name that one module of the package imports from another stands in the other's ``__all__``."""
    trees = {
        f"forwardpass.{path.relative_to(SOURCE).with_suffix('')}".replace("/", "."): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in MODULES
    }
    public = {home: public_names(tree) for home, tree in trees.items()}
    taken = [
        f"{home}: {node.module}.{alias.name}"
        for home, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in public
        for alias in node.names
        if alias.name not in public[node.module]
    ]

    assert not taken


def test_package_exports_equal_the_lazy_table() -> None:
    """``forwardpass.__all__`` is the lazy table and the version, and ``dir`` shows the same."""
    expected = sorted([*forwardpass._HOMES, "__version__"])

    assert sorted(forwardpass.__all__) == expected
    assert sorted(dir(forwardpass)) == expected


@pytest.mark.parametrize("name", forwardpass.__all__)
def test_package_name_can_be_imported(name: str) -> None:
    """Each public name of the package is found, and is its home's object."""
    value = getattr(forwardpass, name)

    if name != "__version__":
        assert value is getattr(importlib.import_module(forwardpass._HOMES[name]), name)


def test_type_checkers_see_the_same_names() -> None:
    """The imports that only type checkers run are exactly the lazy table."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert seen == forwardpass._HOMES


def test_other_names_are_missing() -> None:
    """A name outside the table is an AttributeError, as of any module."""
    with pytest.raises(AttributeError):
        forwardpass.nothing_of_this_name  # noqa: B018
