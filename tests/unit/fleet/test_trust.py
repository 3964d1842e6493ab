"""A fleet's authority is made once, and its certificates open only what they are for."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from slipstream.errors import InvalidInputError
from slipstream.fleet.running.status import RENEW_BEFORE
from slipstream.fleet.trust import (
    MACHINE_DAYS,
    Authority,
    Issued,
    make_authority,
    read_authority,
)

NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = ("spark-1", "10.0.0.1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca") / "folder", "lab", NOW)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Connect the two without a network; what either refuses is raised."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname=name)
    answering = server.wrap_bio(there, back, server_side=True)
    for side in (asking, answering) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def make_contexts(
    folder: Path, authority: Authority, issued: Issued
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    files = (folder / "c.pem", folder / "k.pem")
    files[0].write_bytes(issued.certificate)
    files[1].write_bytes(issued.key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cadata=authority.pem.decode())
    for context in (server, client):
        context.load_cert_chain(*files)
    return server, client


def test_a_machines_certificate_serves_both_ways_for_its_name_and_address(
    tmp_path: Path, authority: Authority
) -> None:
    server, client = make_contexts(tmp_path, authority, authority.issue(NAMES, NOW))
    for name in NAMES:
        shake_hands(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="spark-2"):
        shake_hands(server, client, "spark-2")


def test_a_machine_of_another_fleet_is_let_in_by_neither_side(
    tmp_path: Path, authority: Authority
) -> None:
    other = make_authority(tmp_path / "other", "lab", NOW)
    ours, _ = make_contexts(tmp_path, authority, authority.issue(NAMES, NOW))
    _, stranger = make_contexts(tmp_path, other, other.issue(NAMES, NOW))
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, stranger, NAMES[0])


def test_a_certificate_is_renewed_in_time_or_when_it_does_not_fit(
    tmp_path: Path, authority: Authority
) -> None:
    pem = authority.issue(NAMES, NOW).certificate
    late = NOW + timedelta(days=MACHINE_DAYS) - RENEW_BEFORE + timedelta(days=1)
    stranger = make_authority(tmp_path / "other", "lab", NOW).issue(NAMES, NOW).certificate
    find = authority.find_reason_to_renew
    assert find(pem, NAMES, NOW) is None
    assert find(pem, NAMES[:1], NOW) is None
    assert find(pem, (*NAMES, "10.0.0.9"), NOW) == "its certificate is not for 10.0.0.9"
    assert (find(pem, NAMES, late) or "").startswith("its certificate expires on ")
    for other in (stranger, b"", b"nonsense"):
        assert find(other, NAMES, NOW) == "it has no certificate of this authority"
        assert authority.list_names(other) == []
    assert authority.list_names(pem) == [*NAMES]


def test_an_authority_is_its_makers_alone_and_is_never_made_twice(tmp_path: Path) -> None:
    folder = tmp_path / "lab-authority"
    assert read_authority(folder) is None
    made = make_authority(folder, "lab", NOW)
    read = read_authority(folder)
    assert read is not None
    assert read.pem == made.pem
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(OSError, match="not empty"):
        make_authority(folder, "lab", NOW)
    assert [*tmp_path.iterdir()] == [folder]


def test_files_that_are_no_authority_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    make_authority(one, "lab", NOW)
    make_authority(two, "lab", NOW)
    (one / "authority.key").write_bytes((two / "authority.key").read_bytes())
    with pytest.raises(InvalidInputError, match="has no certificate authority of slipstream"):
        read_authority(one)
    (two / "authority.pem").write_text("nonsense")
    with pytest.raises(InvalidInputError, match="has no certificate authority of slipstream"):
        read_authority(two)
    # Whoever made it died before its certificate was there.
    (two / "authority.pem").unlink()
    with pytest.raises(InvalidInputError, match="has no certificate authority of slipstream"):
        read_authority(two)


def test_no_certificate_outlives_its_authority_and_one_that_has_ended_issues_none(
    tmp_path: Path,
) -> None:
    authority = make_authority(tmp_path / "old", "lab", NOW - timedelta(days=3650 - 30))
    pem = authority.issue(NAMES, NOW).certificate
    assert x509.load_pem_x509_certificate(pem).not_valid_after_utc == authority.ends
    assert authority.find_reason_to_renew(pem, NAMES, NOW) is None
    late = NOW + timedelta(days=31)
    assert authority.find_reason_to_renew(pem, NAMES, late) is not None
    with pytest.raises(InvalidInputError, match="authority expired on"):
        authority.issue(NAMES, late)
