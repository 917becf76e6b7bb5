"""A site's folder: where its data is, its key, and what Flower's client keeps there."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_text
from fedmes.deployment.certificates import make_node_key
from fedmes.deployment.policy import Policy
from fedmes.errors import UserError

NO_FILE = (None, "pretrained", "none")  # values of model.weights


def create(
    directory: Path, name: str, content: Mapping[str, Any], policy: Policy | None = None
) -> None:
    """The folder, for its owner alone: `key`, `key.pub` and, last, `site.toml`."""
    if not name.strip() or not name.isprintable():
        raise UserError(f"name: a line of text is needed, not {name!r}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        there = "is there already and not empty"
        if (directory / "site.toml").is_file():
            there = "is a site already"
        raise UserError(f"site: {directory} {there}; choose another folder")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        make_node_key(directory, name)
        describe(directory, name, content, policy or Policy())
    except OSError as error:
        raise UserError(f"site: {directory} cannot be written ({error.strerror})") from None


def describe(directory: Path, name: str, content: Mapping[str, Any], policy: Policy) -> None:
    """Write `site.toml`."""
    text = ""
    for key, value in {"name": name, **content}.items():
        text += f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
    replace_text(directory / "site.toml", f"{text}\n{policy.text()}")


def read(folder: Path) -> dict[str, Any]:
    """The content of `site.toml`: a name, a path of data or a client of a benchmark, or a list of
    several, and perhaps a path of `weights`: the site's copy of the file that the federation's
    configuration names."""
    path = folder / "site.toml"
    try:
        about = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not the description of a site ({error}); see fedmes site init"
        ) from None
    has_data = _one_or_several(about.get("data"), str) or _one_or_several(about.get("client"), int)
    if not isinstance(about.get("name"), str) or not has_data:
        raise UserError(f"{path}: a site needs a name and data; see fedmes site init")
    data_of(about)
    if not isinstance(about.get("weights", ""), str):
        raise UserError(f"{path}: weights must be the path of a file")
    return about


def _one_or_several(value: object, kind: type) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, kind) for each in value)
    return isinstance(value, kind)


def data_of(about: Mapping[str, Any]) -> dict[str, Path]:
    """The data of each client, by name. A site's only client has the site's name; several are
    called like their folders, or their files without the ending."""
    data = about.get("data", [])
    if isinstance(data, str):
        return {str(about["name"]): Path(data)}
    found: dict[str, Path] = {}
    for each in data:
        path = Path(each)
        name = path.stem if path.is_file() else path.name
        if name in ("", "..") or not name.isprintable():
            raise UserError(f"clients: {path} has no name to call a client by")
        if name in found:
            raise UserError(f"clients: {found[name]} and {path} have the same name")
        found[name] = path
    return found


def fingerprint(folder: Path) -> str:
    """Of the site's public key, by which the server tells this site from others."""
    from fedmes.engines.flower.identity import fingerprint_of_line

    try:
        return fingerprint_of_line((folder / "key.pub").read_text(encoding="utf-8"))
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{folder / 'key.pub'}: not a site's public key ({error})") from None


def supernode_arguments(directory: Path, superlink: str, authority: Path) -> list[str]:
    """What `flower-supernode` is started with."""
    return [
        "--superlink", superlink,
        "--root-certificates", str(authority),
        "--auth-supernode-private-key", str(directory / "key"),
        "--node-config", f"site={json.dumps(str(directory))}",
    ]  # fmt: skip


def instructions(directory: Path, name: str, facts: Path) -> str:
    """What the site's owner does next."""
    kind = "folder" if facts.is_dir() else "file"
    command = shlex.join(["fedmes", "site", "start", str(directory)])
    return (
        f"site {name} is in {directory}; its data stays where it is\n\n"
        f"send this line to the federation's operator (it is public; {directory / 'key'} is not):\n"
        f"{(directory / 'key.pub').read_text()}"
        f"its fingerprint, which the operator reads back to you: {fingerprint(directory)}\n\n"
        f"and this {kind}, with what is said above and nothing else of the data:\n{facts}\n\n"
        f"once it is registered, with the operator's ca.crt and address:\n"
        f"{command} --superlink HOST:8443 --authority ca.crt"
    )
