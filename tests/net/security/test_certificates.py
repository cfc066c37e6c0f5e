"""User certificates: accepted, or refused with an error that names the file or the reason."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc

from seedcli.errors import RefusedError, UsageError
from seedcli.net.connect import connect
from seedcli.net.grpc import GrpcServer
from seedcli.net.handshake import ClientHandshake
from seedcli.net.security.keys import Security, TlsFiles
from seedcli.net.security.refusal import refusal
from seedcli.net.security.token import Token
from tests.net.harness import LIMIT, Actor, Learner, make_server
from tests.net.protected import CONNECT, MINE, OTHER, client_of, refused


class Authority:
    """A certificate authority, as a user may have."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._sequence = 0
        self.ca = self._write(f"{name}.pem", self._certificate(self._subject, self._key, None, 0, 1))

    def _certificate(self, subject: x509.Name, key: Any, host: str | None, first: int, last: int) -> bytes:
        """Create a certificate that is valid from `first` to `last`, in days from now."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=first, minutes=-1))
            .not_valid_after(now + datetime.timedelta(days=last))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host:
            is_address = host.replace(".", "").isdigit()
            name = x509.IPAddress(ipaddress.ip_address(host)) if is_address else x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)

    def issue(self, host: str = "127.0.0.1", first: int = 0, last: int = 1, password: bytes | None = None) -> TlsFiles:
        """Create a certificate for a host and its key; returns the files, without a CA."""
        self._sequence += 1
        name = f"{Path(self.ca).stem}-{self._sequence}"
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption(),
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self._certificate(subject, key, host, first, last)
        return TlsFiles(self._write(f"{name}.crt", certificate), self._write(f"{name}.key", secret))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def with_ca(files: TlsFiles, ca: str) -> TlsFiles:
    return TlsFiles(files.cert, files.key, ca)


@contextlib.contextmanager
def serving(files: TlsFiles, token: Token = MINE) -> Iterator[Learner]:
    learner = Learner(GrpcServer("127.0.0.1", 0, security=Security(token, files)), [1000]).start()
    try:
        yield learner
    finally:
        learner.close()


def test_user_certificates_are_accepted(authority: Authority) -> None:
    server = authority.issue()
    for theirs, mine in (
        (server, TlsFiles(ca=authority.ca)),
        (with_ca(server, authority.ca), with_ca(authority.issue("any-actor"), authority.ca)),
    ):
        with serving(theirs) as learner:
            actor = Actor(learner.server.address, security=Security(MINE, mine))
            actor.echo(0, bytes(1000))
            actor.client.close()


def test_health_clients_need_a_certificate_only_if_actors_do(authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(Path(authority.ca).read_bytes())
    for files, answered in ((authority.issue(), True), (with_ca(authority.issue(), authority.ca), False)):
        with serving(files) as learner, grpc.secure_channel(learner.server.address, credentials) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            if answered:
                status = check(health_pb2.HealthCheckRequest(service="seed.Actor"), timeout=LIMIT).status
                assert status == health_pb2.HealthCheckResponse.SERVING
            else:
                with pytest.raises(grpc.RpcError):
                    check(health_pb2.HealthCheckRequest(), timeout=LIMIT)


def test_user_certificates_do_not_replace_the_token(authority: Authority) -> None:
    with serving(with_ca(authority.issue(), authority.ca)) as learner:
        mine = Security(OTHER, with_ca(authority.issue("actor"), authority.ca))
        with client_of(learner.server.address, mine) as client:
            client.connect(CONNECT)
            handshake = ClientHandshake(client, actor_id="actor", envs=1, streams=1, timeout=LIMIT)
            with pytest.raises(RefusedError, match="the token is not this learner's"):
                handshake.configure()
        assert learner.peers == {}


@pytest.mark.parametrize(
    ("host", "words"),
    [("other.example", "IP address mismatch"), ("127.0.0.2", "IP address mismatch")],
)
def test_a_learners_certificate_for_another_host(authority: Authority, host: str, words: str) -> None:
    with serving(authority.issue(host)) as learner:
        sentence = refused(learner.server.address, Security(MINE, TlsFiles(ca=authority.ca)))
        assert words in sentence and "--tls-ca" in sentence and "seed token" not in sentence


def test_a_learners_certificate_of_another_authority(authority: Authority, tmp_path: Path) -> None:
    with serving(authority.issue()) as learner:
        for ca in (Authority(tmp_path, "outsider").ca, ""):
            mine = TlsFiles(ca=ca) if ca else with_ca(authority.issue("actor"), "")
            sentence = refused(learner.server.address, Security(MINE, mine))
            assert "its certificate: unable to get local issuer certificate" in sentence


def test_user_certificates_on_one_side_only(authority: Authority) -> None:
    with serving(authority.issue()) as learner:
        assert "do not trust each other" in refused(learner.server.address, Security(MINE))
    learner = Learner(make_server("grpc+token"), [1000]).start()
    try:
        sentence = refused(learner.server.address, Security(MINE, TlsFiles(ca=authority.ca)))
        assert "its certificate: " in sentence
    finally:
        learner.close()


def test_a_missing_or_wrong_actor_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    with serving(with_ca(authority.issue(), authority.ca)) as learner:
        address = learner.server.address
        assert "--tls-cert" in refused(address, Security(MINE, TlsFiles(ca=authority.ca)))
        outsider = Authority(tmp_path, "outsider").issue("actor")
        assert "do not trust" in refused(address, Security(MINE, with_ca(outsider, authority.ca)))


@pytest.mark.parametrize("side", ["learner", "actor"])
@pytest.mark.parametrize(("first", "last", "words"), [(-9, -2, "certificate has expired"), (2, 9, "not yet valid")])
def test_a_peers_certificate_outside_its_validity_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, side: str, first: int, last: int, words: str
) -> None:
    # The peer that presents it has a wrong clock.
    monkeypatch.setattr("seedcli.net.security.keys._check_time", lambda *arguments: None)
    good, bad = authority.issue(), authority.issue(first=first, last=last)
    theirs, mine = (bad, good) if side == "learner" else (good, bad)
    with serving(with_ca(theirs, authority.ca)) as learner:
        sentence = refused(learner.server.address, Security(MINE, with_ca(mine, authority.ca)))
        assert words in sentence if side == "learner" else "do not trust" in sentence


def _own_faults(authority: Authority, folder: Path) -> dict[str, tuple[TlsFiles, list[str]]]:
    good, other = authority.issue(), authority.issue()
    expired, early = authority.issue(first=-9, last=-2), authority.issue(first=2, last=9)
    locked = authority.issue(password=b"secret")
    garbage = folder / "garbage.pem"
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nno base64 at all\n-----END CERTIFICATE-----\n")
    empty = folder / "empty.pem"
    empty.write_bytes(b"")
    return {
        "expired": (expired, ["--tls-cert", expired.cert, "expired on"]),
        "not yet valid": (early, ["--tls-cert", early.cert, "is not valid before", "clock"]),
        "the key of another": (TlsFiles(good.cert, other.key), ["--tls-key", good.cert, other.key, "MISMATCH"]),
        "a password": (locked, ["--tls-key", locked.key, "without a password"]),
        "a garbage certificate": (TlsFiles(str(garbage), good.key), ["--tls-cert", str(garbage), "no PEM certificate"]),
        "an empty certificate": (TlsFiles(str(empty), good.key), ["--tls-cert", str(empty), "no PEM certificate"]),
        "a garbage key": (TlsFiles(good.cert, str(garbage)), ["--tls-key", str(garbage)]),
        "a certificate for a key": (TlsFiles(good.cert, good.cert), ["--tls-key"]),
        "no such certificate": (TlsFiles("absent.crt", good.key), ["--tls-cert absent.crt", "No such file"]),
        "no such key": (TlsFiles(good.cert, "absent.key"), ["--tls-key absent.key", "No such file"]),
        "a folder": (TlsFiles(str(folder), good.key), ["--tls-cert", "Is a directory"]),
        "no such authority": (with_ca(good, "absent.pem"), ["--tls-ca absent.pem", "No such file"]),
        "a garbage authority": (with_ca(good, str(garbage)), ["--tls-ca", str(garbage), "no PEM certificate"]),
        "an empty authority": (with_ca(good, str(empty)), ["--tls-ca", str(empty), "no PEM certificate"]),
        "a certificate alone": (TlsFiles(cert=good.cert), ["--tls-cert needs --tls-key"]),
        "a key alone": (TlsFiles(key=good.key), ["--tls-key needs --tls-cert"]),
    }


def test_unusable_certificate_files_are_named_at_startup(authority: Authority, tmp_path: Path) -> None:
    for name, (files, parts) in _own_faults(authority, tmp_path).items():
        for start in (
            lambda files=files: GrpcServer("127.0.0.1", 0, security=Security(MINE, files)),
            lambda files=files: connect("127.0.0.1:1", Security(MINE, files)),
        ):
            with pytest.raises(UsageError) as caught:
                start()
            message = str(caught.value)
            assert caught.value.exit_status == 2 and "\n" not in message
            assert all(part in message for part in parts), (name, message)
    with pytest.raises(UsageError, match="a learner must present its own certificate"):
        GrpcServer("127.0.0.1", 0, security=Security(MINE, TlsFiles(ca=authority.ca)))


def test_refusals_name_the_side_with_the_wrong_setting() -> None:
    tls = Security(MINE, TlsFiles(ca="x"))
    assert "leave out --insecure" in refusal("h:1", None)
    assert "(expired)" in refusal("h:1", tls, "expired") and "--tls-ca" in refusal("h:1", tls)
    assert "from these tests" in refusal("zmq://h:1", tls), "only gRPC has certificates"
