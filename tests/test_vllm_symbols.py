"""What the package uses of vLLM is listed in ``contract.py``, and nothing of vLLM is imported elsewhere.

Objects of vLLM are annotated ``Any``. Every attribute that the adapter reads from such a parameter, or from
what came out of one, has to be a name of the contract, which other tests check against each vLLM release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.engines.vllm.contract import CONTRACT

ADAPTER = Path(__file__).parent.parent / "src" / "forwardpass" / "engines" / "vllm"
SOURCE = ADAPTER.parent.parent

STATIC_IMPORTS = {"scheduler.py": {"vllm.v1.core.sched.async_scheduler.AsyncScheduler"}}
"""A base class has to be there when its subclass is defined; all else goes through ``compat.py``."""

OWN_NAMES = frozenset({"set_worker_id"})
"""What our own scheduler has."""

PYTHON_NAMES = frozenset(
    {
        "__class__",
        "__code__",
        "__members__",
        "__version__",
        "co_code",
        "co_names",
        "fget",
        "get",
        "items",
        "name",
        "shape",
        "values",
    }
)
"""What any object, mapping, property, enum member or tensor has."""

MODEL_NAMES = frozenset({"index_topk", "index_n_heads", "index_head_dim", "model_type", "text_config"})
"""What a model's own configuration has, which is not vLLM's."""

READERS = frozenset({"getattr", "hasattr", "setattr", "attrgetter"})


def static_imports(tree: ast.AST) -> set[str]:
    """Return the dotted name of everything that is imported from vLLM by an import statement."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "vllm"}


def root(node: ast.expr) -> str | None:
    """Return the name that an expression like ``a.b[0].c(…)`` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Call):
            node = node.args[0] if called(node) in ("getattr", "list", "zip") and node.args else node.func
        else:
            node = node.value
    return node.id if isinstance(node, ast.Name) else None


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def foreign_names(function: ast.FunctionDef) -> set[str]:
    """Return the parameters that are annotated with ``Any``, and the locals that come out of them."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = {
        each.arg
        for each in arguments
        if each.annotation is not None
        and any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(each.annotation))
        and "Callable" not in ast.unparse(each.annotation)
    }
    while True:
        before = len(names)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and root(node.value) in names:
                names |= {part.id for target in node.targets for part in ast.walk(target)
                          if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}  # fmt: skip
            elif isinstance(node, ast.For | ast.comprehension) and root(node.iter) in names:
                names |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        if len(names) == before:
            return names


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every attribute that is read from a foreign object."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = foreign_names(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and root(node.value) in names:
                yield node.lineno, node.attr
            elif isinstance(node, ast.Call) and called(node) in READERS:
                literals = [
                    a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                ]
                yield from ((node.lineno, part) for text in literals for part in text.split("."))


def test_only_the_base_class_is_imported() -> None:
    """No file of the package has an import statement for vLLM, but for the scheduler's base class."""
    found = {
        path.name: imported
        for path in SOURCE.rglob("*.py")
        if (imported := static_imports(ast.parse(path.read_text(encoding="utf-8"))))
    }

    assert found == STATIC_IMPORTS


def test_only_compat_imports_by_name() -> None:
    """No other file of the adapter calls ``import_module``."""
    found = {
        path.name
        for path in ADAPTER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
    }

    assert found == {"compat.py"}


def test_names_in_quotes_are_in_the_contract() -> None:
    """A dotted path into vLLM in a string is one that ``contract.py`` lists, with what it holds."""
    listed = {symbol.owner for symbol in CONTRACT} | {f"{each.owner}.{each.name}" for each in CONTRACT}
    found = [
        f"{path.name}:{node.lineno}: {node.value}"
        for path in SOURCE.rglob("*.py")
        if path.name not in ("compat.py", "contract.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.fullmatch(r"vllm(\.\w+)+", node.value) and node.value not in listed
    ]  # fmt: skip

    assert not found


def test_what_is_read_of_vllm_is_in_the_contract() -> None:
    """Every attribute that the adapter reads from an object of vLLM's is listed in ``contract.py``."""
    listed = {symbol.name for symbol in CONTRACT} | PYTHON_NAMES | OWN_NAMES | MODEL_NAMES
    found = [
        f"{path.name}:{line}: {name}"
        for path in sorted(ADAPTER.glob("*.py"))
        for line, name in reads(ast.parse(path.read_text(encoding="utf-8")))
        if name not in listed
    ]

    assert not found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return output.a.b[0].c", {"a", "b", "c"}),
        ("x = output.a\n    y = x.b\n    return y.c", {"a", "b", "c"}),
        ("return [each.a for each in output]", {"a"}),
        ("for one in output.a:\n        one.b", {"a", "b"}),
        ("return getattr(output, 'a', None).b", {"a", "b"}),
        ("return attrgetter('a.b')", {"a", "b"}),
        ("return other.a", set()),
    ],
)
def test_what_counts_as_read(body: str, expected: set[str]) -> None:
    """Chains, locals, loops, comprehensions and names in quotes all count."""
    tree = ast.parse(f"def f(output: Any, other: int):\n    {body}")

    assert {name for _, name in reads(tree)} == expected
