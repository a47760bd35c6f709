"""Says which argument of a call does not fit. nanobind only lists what the function takes and the types that it was given."""

from __future__ import annotations

import ast
import re

_simple = {"int": {"int", "bool"}, "float": {"float", "int", "bool"}, "str": {"str"}, "bool": {"bool"}, "None": {"NoneType"},
           "list": {"list", "tuple"}, "Sequence": {"list", "tuple"}, "tuple": {"tuple", "list"}, "dict": {"dict"}}
_never_callable = {"int", "float", "str", "bool", "NoneType", "list", "tuple", "dict", "bytes", "bytearray"}


def _fits(given: str, taken: ast.expr) -> bool:
    if isinstance(taken, ast.BinOp):
        return _fits(given, taken.left) or _fits(given, taken.right)
    if isinstance(taken, ast.Subscript):
        return _fits(given, taken.value)
    name = ast.unparse(taken).rpartition(".")[2]
    if name in ("object", "Any"):
        return True
    if name == "Callable":
        return given not in _never_callable
    if name in _simple:
        return given in _simple[name] or (name in ("int", "float") and given.startswith("numpy."))
    return given.rpartition(".")[2] == name


def _article(kind: str) -> str:
    return "None" if kind == "NoneType" else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _is_unusable(kind: str) -> str:
    return (f"was asked of {_article(kind)} that is no object of its class, or that was not made by its constructor, once; "
            "a class that inherits calls super().__init__ with its arguments")


# What the values of a type may be, beside what the type says.
_rules = {r"\b(int|float)\b": "numbers of ranks, tags and bytes are not negative", r"\bstr\b": "texts have a form in UTF-8",
          r"\bCallable\b": "functions can be called", r"\[": "entries have the types that are named"}


def explained(text: str) -> str:
    """A better text for nanobind's error."""
    found = re.search(r"supported:\n\s+1\. (?:def )?(.*)\n(?s:.*)\nInvoked with types: (.*)", text)
    if found is None:
        return text
    if found[1].startswith("(self)"):
        return f"this attribute {_is_unusable(found[2].rpartition('.')[2])}"
    signature, types = (each.replace("collections.abc.", "").replace("parley._native.", "") for each in found.groups())
    function = ast.parse(f"def {signature}: ...").body[0]
    if not isinstance(function, ast.FunctionDef):
        return text
    positional, _, keywords = types.partition("kwargs = { ")
    values = [each for each in positional.split(", ") if each]
    named = dict(each.split(": ", 1) for each in keywords.removesuffix(" }").split(", ") if each)
    parameters = {p.arg: p.annotation for p in function.args.args + function.args.kwonlyargs}
    name, kind = function.name, ""
    if "self" in parameters:
        del parameters["self"]
        kind = values.pop(0).rpartition(".")[2] if values else ""
        name = kind if name == "__init__" else f"{kind}.{name}"
    takes = re.sub(r"^\w+\((self(, )?)?", "(", signature).partition(" -> ")[0]
    return f"{name}: {_fault(kind, parameters, len(function.args.defaults), values, named)}; the call is {name}{takes}"


def _fault(kind: str, parameters: dict[str, ast.expr | None], defaults: int, values: list[str], named: dict[str, str]) -> str:
    names = list(parameters)
    if len(values) > len(names):
        return f"{len(values)} arguments are too many"
    given = dict(zip(names, values, strict=False))
    for word in named:
        if word not in parameters:
            return f"there is no argument `{word}`"
        if word in given:
            return f"`{word}` was given twice"
    given |= named
    for word in names[:len(names) - defaults]:
        if word not in given:
            return f"the argument `{word}` is missing"
    for word, kind in given.items():
        taken = parameters[word]
        if taken is not None and not _fits(kind, taken):
            return f"`{word}` takes {ast.unparse(taken)}, not {_article(kind)}"
    doubtful = {word: ast.unparse(taken) for word in given if (taken := parameters[word]) is not None}
    rules = {rule: [word for word, taken in doubtful.items() if re.search(pattern, taken)] for pattern, rule in _rules.items()}
    words = [word for word in doubtful if any(word in each for each in rules.values())]
    if not words:
        return _is_unusable(kind)
    return (f"the value of {' or '.join(f'`{word}`' for word in words)} does not fit: "
            f"{', and '.join(rule for rule, each in rules.items() if each)}")
