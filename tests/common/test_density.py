"""How much a line, a function and a file of the package may hold, so that each says one thing."""

import ast
from pathlib import Path

import pytest

import fedmes

PACKAGE = Path(fedmes.__file__).parent
COLUMNS = 100
LINES_PER_FILE = 400
LINES_PER_FUNCTION = 50
PARAMETERS = 8
# Files that are still denser than this; none is added.
UNFINISHED: list[str] = []

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def dense(text):
    """(line, what is too much there) for a file's text."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield number, f"a line of {len(line)} columns"
    if len(lines) > LINES_PER_FILE:
        yield len(lines), f"a file of {len(lines)} lines"
    for node in ast.walk(ast.parse(text)):
        for what in dense_node(node):
            yield node.lineno, what


def dense_node(node):
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        if isinstance(node.targets[0], ast.Tuple):
            yield "several assignments in one line"
    elif isinstance(node, COMPREHENSIONS):
        if holds(node, COMPREHENSIONS) or len(node.generators) > 2:
            yield "a nested comprehension"
        if holds(node, ast.IfExp):
            yield "a conditional in a comprehension"
    elif isinstance(node, ast.JoinedStr):
        if holds(node, ast.IfExp):
            yield "a conditional in an f-string"
    elif isinstance(node, ast.IfExp):
        if holds(node, ast.IfExp):
            yield "a conditional in a conditional"
    elif isinstance(node, FUNCTIONS):
        yield from long_function(node)
    elif isinstance(node, ast.ClassDef) and not documented(node):
        yield f"class {node.name} without a docstring"


def documented(node):
    return node.name.startswith("_") or ast.get_docstring(node)


def long_function(function):
    lines = function.end_lineno - function.lineno + 1
    if lines > LINES_PER_FUNCTION:
        yield f"{function.name} has {lines} lines"
    arguments = function.args
    names = [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    parameters = len(names) - (names[:1] in (["self"], ["cls"]))
    if parameters > PARAMETERS and not is_kernel(function):
        yield f"{function.name} has {parameters} parameters"


def is_kernel(function):
    """A Triton kernel takes every pointer, size and stride by itself."""
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def holds(node, kinds):
    """Is there such a node below this one?"""
    return any(isinstance(below, kinds) for below in ast.walk(node) if below is not node)


@pytest.mark.parametrize(
    "file", sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
)
def test_each_line_says_one_thing(file):
    if file in UNFINISHED:
        pytest.skip("it is not done yet")
    found = [f"{file}:{line}: {what}" for line, what in dense((PACKAGE / file).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = '" + "y" * 100 + "'", "a line of 106 columns"),
        ("x = 1\n" * 401, "a file of 401 lines"),
        ("a, b = c, d", "several assignments in one line"),
        ("[[y for y in x] for x in z]", "a nested comprehension"),
        ("{a for b in c for d in b for a in d}", "a nested comprehension"),
        ("sum(1 if x else 2 for x in y)", "a conditional in a comprehension"),
        ("f'{1 if x else 2}'", "a conditional in an f-string"),
        ("x = 1 if a else 2 if b else 3", "a conditional in a conditional"),
        ("def f():\n" + "    x = 1\n" * 50, "f has 51 lines"),
        ("def f(a, b, c, d, e, g, *, h, i, j): ...", "f has 9 parameters"),
        ("class Thing: ...", "class Thing without a docstring"),
    ],
)
def test_what_is_too_dense_is_found(text, what):
    assert [found for _, found in dense(text)] == [what]


@pytest.mark.parametrize(
    "text",
    [
        "a, b = divmod(x, y)",
        "x = [a for b in c for a in b if a]",
        "def f(self, a, b, c, d, e, g, h, i): ...",
        "@triton.jit\ndef f(a, b, c, d, e, g, h, i, j): ...",
        "class _Private: ...",
        "def f():\n" + "    x = 1\n" * 49,
        "x = 1\n" * 400,
    ],
)
def test_what_is_not_too_dense_passes(text):
    assert list(dense(text)) == []
