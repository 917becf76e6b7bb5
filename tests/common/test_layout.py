"""The order of the rooms: data flows from the first folder to the last, and no import runs against
it."""

import ast
import re
from pathlib import Path

import pytest

import fedmes

PACKAGE = Path(fedmes.__file__).parent
ROOT = {
    "__init__",
    "__main__",
    "errors",
    "tensors",
    "version",
    "functional",
    "contract",
    "flowerapp",
}
FOLDERS = [
    "common", "config", "data", "scenario", "models", "methods", "results", "engines", "engines.stacked",
    "engines.flower", "experiment", "prediction", "report", "studies", "deployment", "api",
    "cli",
]  # fmt: skip
# What every folder may import, since it imports none of them; and the doors, which import any of
# them.
BELOW = {"fedmes.errors", "fedmes.tensors", "fedmes.version"}
DOORS = {"fedmes", "fedmes.__main__", "fedmes.functional", "fedmes.contract", "fedmes.flowerapp"}
MODULES = {
    ".".join(("fedmes", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}


def floor(module):
    """Where a module stands: the index of its folder; -1 below all folders, and above them all for
    a door."""
    if module in BELOW:
        return -1
    if module in DOORS:
        return len(FOLDERS)
    folder = module.removeprefix("fedmes.")
    while folder not in FOLDERS:
        folder, _, _ = folder.rpartition(".")
        assert folder, f"{module} is in no folder of the layout"
    return FOLDERS.index(folder)


def imported(path):
    """Every module of the package that a file names: imports at the top, late ones, those for type
    checkers, and dotted names in texts, which are imported by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fedmes")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module and node.module.split(".")[0] == "fedmes":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in re.findall(r"^(fedmes(?:\.\w+)+)(?::\w+)?$", node.value):
                if name in MODULES:
                    yield name


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_against_the_order(module):
    against = {name for name in imported(MODULES[module]) if floor(name) > floor(module)}
    assert not against, f"{module} imports {', '.join(sorted(against))}"


def test_the_root_holds_few_files():
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT


def test_every_folder_is_in_the_order_and_says_what_it_holds():
    folders = {
        ".".join(path.parent.relative_to(PACKAGE).parts) for path in PACKAGE.rglob("*.py")
    } - {""}
    assert folders == set(FOLDERS)
    for folder in FOLDERS:
        said = ast.get_docstring(
            ast.parse((PACKAGE / folder.replace(".", "/") / "__init__.py").read_text())
        )
        assert said, folder


def test_the_map_of_the_contributing_guide_names_every_folder():
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    named = re.findall(r"^\| `src/fedmes/([a-z/]+)/` \|", guide, re.M)
    assert [folder.replace("/", ".") for folder in named] == FOLDERS


def test_one_door_for_authors_of_methods():
    from fedmes import methods

    for name in (
        "FedAvg",
        "Method",
        "Batch",
        "Me",
        "pick",
        "put",
        "hashed_uniforms",
        "cross_entropy",
        "Voting",
    ):
        assert getattr(methods, name)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = methods.Nothing


def test_former_places_are_still_there():
    from fedmes import contract, functional, methods

    assert functional.pick is methods.pick and contract.Method is methods.Method
    flowerapp = (PACKAGE / "flowerapp.py").read_text()
    assert "from fedmes.deployment.app import client, server" in flowerapp


def test_one_version():
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"$', pyproject, re.M)[1] == fedmes.__version__


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_needs_unix_to_be_imported(module):
    """Modules that Windows lacks may be imported within functions only."""
    names = set()
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert not names & {"fcntl", "pty", "pwd", "resource", "termios"}
