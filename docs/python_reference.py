#!/usr/bin/env python3
"""Writes the reference of the Python package, for the site, from its docstrings. Nothing is imported.

    python_reference.py [--stub build/python/.../_native.pyi] > build/site/python-api.md

The classes of the extension are in the stub that `./dev python` makes; without one, the page has only what is written in Python.
"""

import argparse
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python/parley"
INSIDE = {"__init__", "__main__", "agree", "errors"}  # `parley` has the names of these


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def named(tree):
    """The functions and classes of a module, by name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


def public_names(tree):
    """What `__all__` lists; without it, the functions and classes without an underscore that the module makes itself."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return [name for name in named(tree) if not name.startswith("_")]


def escaped(text):
    """Prose, in which doxygen is to see no commands. Code keeps its signs: between backticks, and in indented lines."""
    lines = []
    for line in text.splitlines():
        parts = line.split("`") if not line.startswith("    ") else [line]
        if len(parts) > 1 or not line.startswith("    "):
            parts[::2] = [re.sub(r"([\\@<>#*_])", r"\\\1", part) for part in parts[::2]]
        lines.append("`".join(parts))
    return "\n".join(lines)


headings = set()


def heading(title, level):
    """doxygen makes a label of its letters, blanks and digits, in lower case; functions with several signatures get numbers."""
    text, number = title, 1
    while (label := re.sub(r"[^a-z0-9_ ]", "", text.lower())) in headings:
        number += 1
        text = f"{title} ({number})"
    headings.add(label)
    return f"{'#' * level} {text}\n"


def signature(node):
    words = re.sub(r"^self(, )?", "", ast.unparse(node.args))
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    back = f" -> {ast.unparse(node.returns)}" if getattr(node, "returns", None) else ""
    return f"{kind} {node.name}({words}){back}"


def is_property(node):
    return any("property" in ast.unparse(mark) for mark in node.decorator_list)


def of_function(node, title, level):
    yield heading(title, level)
    is_value = is_property(node) and node.returns
    yield f"```python\n{node.name + ': ' + ast.unparse(node.returns) if is_value else signature(node)}\n```\n"
    text = ast.get_docstring(node)
    if text:
        yield escaped(text) + "\n"


def of_class(node, title, level):
    bases = [ast.unparse(base) for base in node.bases]
    yield heading(title, level)
    if bases:
        yield f"A {', '.join(f'`{base}`' for base in bases)}.\n"
    text = ast.get_docstring(node)
    if text:
        yield escaped(text) + "\n"
    fields = [f"{item.target.id}: {ast.unparse(item.annotation)}" for item in node.body if isinstance(item, ast.AnnAssign)]
    if fields:
        yield "```python\n" + "\n".join(fields) + "\n```\n"
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and (item.name == "__init__" or not item.name.startswith("_")):
            if item.name == "__init__":
                yield f"```python\n{signature(item).replace('def __init__', title.split('.')[-1], 1).removesuffix(' -> None')}\n```\n"
                if ast.get_docstring(item):
                    yield escaped(ast.get_docstring(item)) + "\n"
            elif not any("setter" in ast.unparse(mark) for mark in item.decorator_list):
                yield from of_function(item, f"{item.name} of {title}", level + 1)


def of_names(names, found, module, level):
    for name in names:
        node = found.get(name)
        if isinstance(node, ast.ClassDef):
            yield from of_class(node, f"{module}.{name}", level)
        elif node is not None:
            yield from of_function(node, f"{module}.{name} (function)", level)


def page(stub):
    yield "# Python reference\n"
    yield escaped(ast.get_docstring(tree_of(PACKAGE / "__init__.py"))) + "\n"
    sources = [tree_of(PACKAGE / f"{name}.py") for name in ("__init__", "agree", "errors")]
    found = {}
    for tree in [*sources, *([tree_of(stub)] if stub else [])]:
        found = {**named(tree), **found}
    yield "## parley\n"
    if stub is None:
        yield "This site was made without the extension: `./dev python` makes the stub that has its classes.\n"
    yield from of_names(public_names(sources[0]), found, "parley", 3)
    for path in sorted(PACKAGE.glob("*.py")):
        if path.stem in INSIDE or path.stem.startswith("_"):
            continue
        tree = tree_of(path)
        yield heading(f"The module parley.{path.stem}", 2)
        yield escaped(ast.get_docstring(tree) or "") + "\n"
        yield from of_names(public_names(tree), named(tree), f"parley.{path.stem}", 3)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--stub", type=pathlib.Path)
    stub = options.parse_args().stub
    made = sorted((ROOT / "build/python").glob("*/build/_native.pyi"), key=lambda path: path.stat().st_mtime)
    sys.stdout.write("\n".join(page(stub or (made[-1] if made else None))))


if __name__ == "__main__":
    main()
