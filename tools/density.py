"""How full the lines of Python packages are: `python tools/density.py src/fedmes [OTHER_PACKAGE
...]`.

Counts by the syntax tree, per 1,000 lines that are neither blank nor a comment, so that packages of
any size compare.
"""

import ast
import statistics
import sys
from pathlib import Path

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def files(package):
    """The modules of a package, without its tests."""
    return [path for path in sorted(Path(package).rglob("*.py")) if "test" not in path.as_posix()]


def code_lines(text):
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def nested(node):
    """A comprehension with another one inside."""
    inside = (child for child in ast.walk(node) if child is not node)
    return isinstance(node, COMPREHENSIONS) and any(
        isinstance(child, COMPREHENSIONS) for child in inside
    )


def packed(node):
    """Several values assigned to several names at once."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
    )


def parameters(node):
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([argument for argument in every if argument.arg not in ("self", "cls")])


def measure(package):
    texts = {path: path.read_text(encoding="utf-8") for path in files(package)}
    lines = [line for text in texts.values() for line in code_lines(text)]
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    lengths = [node.end_lineno - node.lineno + 1 for node in functions]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    documented = [node for node in classes if ast.get_docstring(node)]

    def per_thousand(count):
        return round(1000 * count / len(lines))

    return {
        "files": len(texts),
        "lines": len(lines),
        "nodes of the syntax tree": len(nodes),
        "mean characters per line": round(statistics.mean(len(line) for line in lines), 1),
        "lines over 100 characters, %": round(
            100 * sum(len(line) > 100 for line in lines) / len(lines), 1
        ),
        "comprehensions per 1,000": per_thousand(
            sum(isinstance(node, COMPREHENSIONS) for node in nodes)
        ),
        "nested comprehensions": sum(nested(node) for node in nodes),
        "conditional expressions per 1,000": per_thousand(
            sum(isinstance(node, ast.IfExp) for node in nodes)
        ),
        "packed assignments per 1,000": per_thousand(sum(packed(node) for node in nodes)),
        "longest file": max(len(text.splitlines()) for text in texts.values()),
        "function length, median": statistics.median(lengths),
        "function length, longest": max(lengths),
        "parameters, most": max(parameters(node) for node in functions),
        "classes with a docstring, %": round(100 * len(documented) / len(classes)),
    }


def main():
    measured = {package: measure(package) for package in sys.argv[1:] or ["src/fedmes"]}
    for name in next(iter(measured.values())):
        values = "  ".join(f"{measured[package][name]!s:>12}" for package in measured)
        print(f"{name:36}{values}")


if __name__ == "__main__":
    main()
