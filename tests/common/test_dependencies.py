"""What fedmes runs on: licences, a bill of materials, and versions that must not be used."""

import importlib.util
import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("dependencies", ROOT / "tools/dependencies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def installed(tool):
    return tool.installed()


def test_nothing_that_is_installed_is_known_to_be_bad(tool, installed):
    versions = {name: each.version for name, each in installed.items()}
    assert tool.audit(versions, tool.known_bad()) == []


def test_a_bad_version_is_found(tool):
    found = tool.audit({"h11": "0.14.0", "requests": "2.32.4"}, tool.known_bad())
    assert [line.partition(",")[0] for line in found] == ["h11 0.14.0: CVE-2025-43859"]


def test_no_bad_version_is_admitted(tool):
    """By the bounds in pyproject.toml, of packages that are named there."""
    declared = {canonicalize_name(each.name): each.specifier for each in tool.declared()}
    for entry in tool.known_bad():
        assert SpecifierSet(entry["affected"]).contains(entry["last"])
        if entry["package"] in declared:
            assert not declared[entry["package"]].contains(entry["last"]), entry


def test_every_dependency_has_an_upper_bound(tool):
    project = [each for each in tool.declared() if each.name in ("numpy", "torch", "flwr", "h11")]
    assert len(project) == 5  # Flower is there twice, once with its simulation
    required = tool.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in [*map(Requirement, required), *project]:
        bounds = {each.operator for each in requirement.specifier}
        assert bounds & {"<", "=="}, requirement


def test_every_dependency_has_a_licence(tool, installed):
    listed = (ROOT / "THIRD_PARTY.md").read_text()
    for requirement in tool.declared():
        assert f"\n| {canonicalize_name(requirement.name)} | " in listed, requirement
    unknown = [name for name, each in installed.items() if not tool.licence(name, each)]
    assert unknown == []


def test_the_bill_of_materials(tool, installed, monkeypatch, capsys):
    monkeypatch.setattr(tool, "installed", lambda: installed)
    assert tool.main("bill") == 0
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {each["name"]: each for each in bill["components"]}
    assert {"numpy", "torch", "pydantic-core"} <= found.keys()  # the last one by way of pydantic
    numpy = found["numpy"]
    assert numpy["purl"] == f"pkg:pypi/numpy@{installed['numpy'].version}"
    assert "BSD" in numpy["licenses"][0]["license"]["name"]


def test_sites_do_not_need_ray(tool):
    extras = tool.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    flower = map(Requirement, extras["optional-dependencies"]["flower"])
    assert all("simulation" not in each.extras for each in flower)
    simulation = map(Requirement, extras["optional-dependencies"]["simulation"])
    assert any("simulation" in each.extras for each in simulation)
