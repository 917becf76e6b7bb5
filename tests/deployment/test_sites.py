"""Certificates, keys and the folders of sites."""

import json
import re
import stat
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedmes import config
from fedmes.deployment import local, require_flower, site
from fedmes.deployment.policy import Policy
from fedmes.deployment.up import sites_of_custom_data, up
from fedmes.errors import UserError
from fedmes.scenario.custom import read_site
from helpers.forked import fedmes

ROOT = Path(__file__).parents[2]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- certificates and keys ------------------------------------------------------------------------


@pytest.mark.flower
def test_authority_and_server_certificate(tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID

    from fedmes.deployment.certificates import make_server

    files = make_server(tmp_path, ["fed.example.org", "10.0.0.7"])
    authority, server = (
        x509.load_pem_x509_certificate(p.read_bytes()) for p in (files.authority, files.certificate)
    )
    for certificate in (authority, server):
        certificate.verify_directly_issued_by(authority)
        assert certificate.not_valid_before_utc < datetime.now(UTC)
        assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)

    def extension(certificate, kind):
        return certificate.extensions.get_extension_for_class(kind).value

    assert (
        extension(authority, x509.BasicConstraints).ca
        and not extension(server, x509.BasicConstraints).ca
    )
    assert (
        extension(authority, x509.KeyUsage).key_cert_sign
        and not extension(server, x509.KeyUsage).key_cert_sign
    )
    assert list(extension(server, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = extension(server, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    assert key.public_key() == server.public_key()
    assert mode(files.key) == 0o600


@pytest.mark.flower
def test_a_server_with_these_certificates_is_trusted_by_its_authority_only(tmp_path):
    import ssl

    from fedmes.deployment.certificates import make_server

    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    mine, other = (make_server(tmp_path / name) for name in ("mine", "other"))

    def handshake(authority, host):
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(mine.certificate, mine.key)
        asking = ssl.create_default_context(cafile=authority)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = asking.wrap_bio(to_client, to_server, server_hostname=host)
        server = served.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue

    handshake(mine.authority, "localhost")
    handshake(mine.authority, "127.0.0.1")
    for authority, host in ((other.authority, "localhost"), (mine.authority, "elsewhere.org")):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(authority, host)


# --- a site's folder ------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """One site's data: two tasks, images of different sizes."""
    for task in ("first", "second"):
        for part, count in (("train", 2), ("test", 1)):
            for label in ("cat", "dog"):
                folder = tmp_path / "pictures" / task / part / label
                folder.mkdir(parents=True)
                for n in range(count):
                    Image.fromarray(np.zeros((3 + n, 4), np.uint8)).save(folder / f"{n}.png")
    return tmp_path / "pictures"


@pytest.mark.slow
@pytest.mark.flower
def test_site_init(tmp_path, pictures):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    status, out, err = fedmes(
        "site", "init", "here", "--data", "pictures", "--name", "north", cwd=tmp_path
    )
    assert (status, err) == (0, "")
    folder = tmp_path / "here"
    about = tomllib.loads((folder / "site.toml").read_text())
    assert Policy.of(about, folder) == Policy()
    about.pop("policy")
    assert about == {"name": "north", "data": str(pictures)}
    assert (mode(folder), mode(folder / "key")) == (0o700, 0o600)
    private = serialization.load_ssh_private_key((folder / "key").read_bytes(), None)
    public = serialization.load_ssh_public_key((folder / "key.pub").read_bytes())
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert (folder / "key.pub").read_text() in out and "PRIVATE" not in out
    assert f"fedmes site start {folder} --superlink HOST:8443 --authority ca.crt\n" in out

    before = (folder / "key").read_bytes()
    status, _, err = fedmes("site", "init", "here", "--data", "pictures", cwd=tmp_path)
    assert (status, err) == (2, f"error: site: {folder} is a site already; choose another folder\n")
    assert (folder / "key").read_bytes() == before


def test_a_site_is_not_made_of_data_that_cannot_be_read(tmp_path, pictures, own_npz):
    (pictures / "second/train/cat/1.png").write_text("not an image")
    for path, reason in (
        (pictures, "cannot be read as an image"),
        (tmp_path / "nowhere", "there is no file or folder"),
        (own_npz, "the data of 2 clients"),
    ):
        with pytest.raises(UserError, match=reason):
            read_site(path, 1)


def test_a_site_reads_its_own_data(pictures):
    table = read_site(pictures, image_size=2)
    assert (table.client_names, table.task_names) == (("pictures",), ("first", "second"))
    assert table.dataset.x.shape == (12, 2, 2, 1)
    assert table.test.sum() == 4


def test_a_folder_with_other_things_does_not_become_a_site(tmp_path):
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(UserError, match="not empty"):
        site.create(tmp_path, "a", {})
    with pytest.raises(UserError, match="a line of text"):
        site.create(tmp_path / "new", "a\nb", {})
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_without_flower_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(UserError, match=r"pip install 'fedmes\[flower\]'"):
        require_flower()


# --- Flower ---------------------------------------------------------------------------------------


def test_each_client_of_own_data_becomes_a_site(tmp_path, pictures):
    """The server reads back just what was agreed on, and nothing in it leads to the data."""
    (tmp_path / "all").mkdir()
    for name in ("north", "south"):
        (tmp_path / "all" / name).symlink_to(pictures)
    options = {"data.path": str(tmp_path / "all"), "data.image_size": 4, "model": "linear"}
    settled, sites = sites_of_custom_data(config.load(None, options), tmp_path / "all")
    assert sites == {name: {"data": str(tmp_path / "all" / name)} for name in ("north", "south")}
    assert (settled.federation.classes, settled.federation.shape) == (["cat", "dog"], [1, 4, 4])
    (tmp_path / "config.toml").write_text(settled.to_toml({}))
    assert str(tmp_path) not in settled.to_toml({})
    assert config.load(tmp_path / "config.toml", {}).as_dict() == settled.as_dict()
    with pytest.raises(UserError, match=r"sites: 3 asked for, but .* has 2"):
        sites_of_custom_data(config.load(None, options | {"clients": 3}), tmp_path / "all")


def test_the_app_of_the_docs_and_of_the_project_is_the_one_that_is_run():
    run = tomllib.loads(local.APP)
    (written,) = re.findall(
        r"```toml\n(\[project\]\n.*?)```", (ROOT / "docs/deployment.md").read_text(), re.DOTALL
    )
    assert tomllib.loads(written) == run
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert {key: app[key] for key in run["tool"]["flwr"]["app"]} == run["tool"]["flwr"]["app"]


def test_own_data_of_a_federation_is_a_folder(tmp_path, own_npz):
    with pytest.raises(UserError, match="--data must be a folder"):
        up(config.load(None, {"data.path": str(own_npz)}), tmp_path / "here")
    assert not (tmp_path / "here").exists()


STREAM = ["log", "7", "federation", "--stream"]


def answer(content):
    """What `flwr` prints of a run that was accepted, and its JSON."""
    return "Successfully started run 7\n" + json.dumps(content, indent=2)


def standing(status):
    return answer({"runs": [{"run-id": "7", "status": status}]})


@pytest.mark.flower
@pytest.mark.parametrize(
    ("outputs", "end", "begun"),
    [
        # what `flwr ls` says counts; `flwr log` goes on from there
        (["running", "running", "finished:completed"], "completed", [STREAM, STREAM]),
        # it is asked again when there was no answer, or an error in place of one
        (
            ["running", "", "error", "finished:failed"],
            "failed",
            [STREAM, local.STATUS, local.STATUS],
        ),
        ([""] * (local.QUESTIONS + 1), "lost", [local.STATUS] * local.QUESTIONS),
    ],
    ids=["breaks off", "is busy", "never answers"],
)
def test_the_end_of_a_run_is_what_the_superlink_says(outputs, end, begun, tmp_path, monkeypatch):
    texts = {"": "Successfully started run 7\n", "error": answer({"success": False})}
    said = [texts.get(status) or standing(status) for status in outputs]
    asked = []

    def begin(name, *commands):
        asked.append(commands[0])
        (federation.log / f"{name}.log").write_text(said.pop(0))

    federation = local.Federation(tmp_path, [])
    federation.log.mkdir()
    federation._supervisor = SimpleNamespace(alive=lambda name: name == "superlink")
    monkeypatch.setattr(federation, "_begin_flwr", begin)
    (federation.log / "run0.log").write_text(said.pop(0))
    assert federation.wait() == end
    assert (asked, said) == (begun, [])
