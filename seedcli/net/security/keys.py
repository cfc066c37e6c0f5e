"""How connections are protected: keys for both transports, derived from the token, or certificates of the user's own.

Everything here is the same on both sides, which is the point: whoever holds the token has the learner's and the
actors' keys. ZeroMQ encrypts with CURVE (RFC 26); gRPC with TLS, both sides showing a self-signed P-256 certificate
that the other makes for itself from the token, and trusts alone. Encryption has keys of its own for each connection
(forward secrecy): who learns the token later cannot read what was recorded earlier.
"""

from __future__ import annotations

import datetime
import hmac
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from seedcli.errors import ProtocolError, UsageError
from seedcli.net.security.token import Token

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Side = Literal["learner", "actor"]
ZAP_DOMAIN = b"seed"
_NONCE_BYTES = 32
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# The clock has no say in certificates that come from the token: they have always been good and stay so.
_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class TlsFiles:
    """Certificates of the user's own, for gRPC; "" where there is none.

    Attributes:
        cert, key: PEM files of this side's certificate (with intermediate ones) and its private key.
        ca: PEM file of what the other side's certificate must come from.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return bool(self.cert or self.key or self.ca)


@dataclass(frozen=True)
class Security:
    """What one side protects its connections with.

    Attributes:
        token: the shared one.
        tls: certificates that take the place of those made from the token, for gRPC; None: none.
    """

    token: Token
    tls: TlsFiles | None = None


@dataclass(frozen=True)
class TlsIdentity:
    """What one side of a TLS connection shows and trusts, as PEM.

    Attributes:
        key, chain: its private key and certificates; None: it shows none.
        roots: what the other side's certificate must come from; None: on an actor those that gRPC brings along, on a
            learner nothing is asked.
        name: what the learner's certificate must be issued to; None: the host of the address.
    """

    key: bytes | None = field(repr=False)
    chain: bytes | None
    roots: bytes | None
    name: str | None


def refusal(address: str, security: Security | None, reason: str = "") -> str:
    """The sentence for an actor whose connections the learner accepts and then ends.

    Args:
        address: the learner's.
        security: the actor's.
        reason: what is known of why.
    """
    why = f" ({reason})" if reason else ""
    if security is None:
        return f"the learner at {address} ends unencrypted connections{why}: leave out --insecure, or give it to both"
    if security.tls is not None and not address.startswith("zmq:"):
        return (
            f"the learner at {address} and this actor do not trust each other's certificates{why}: check --tls-ca, "
            "--tls-cert and --tls-key of both"
        )
    return (
        f"the learner at {address} and this actor do not trust each other{why}: the actor's token is the one from "
        f"{security.token.source}; give both the same token (seed token show), or --insecure to both; a learner with a "
        "certificate of its own wants --tls-ca here"
    )


# -- ZeroMQ ---------------------------------------------------------------------------------------------------


def curve_keys(token: Token, side: Side) -> tuple[bytes, bytes]:
    """The CURVE keys of a side: (public, secret), each 40 characters of Z85."""
    import zmq
    from zmq.utils import z85

    secret = z85.encode(token.derive(f"zeromq curve {side}"))
    return zmq.curve_public(secret), secret


# -- gRPC -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _certificate(seed: bytes, name: str) -> tuple[bytes, bytes]:
    """A P-256 key and its self-signed certificate, as PEM; the same for the same 64 bytes."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    # 384 bits modulo a prime of 256: no value is more probable than another by more than 2^-128.
    key = ec.derive_private_key(1 + int.from_bytes(seed[:48]) % (_P256_ORDER - 1), ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1 + int.from_bytes(seed[48:]) // 2)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret, certificate.public_bytes(serialization.Encoding.PEM)


def _made_from_token(token: Token, side: Side) -> tuple[bytes, bytes]:
    return _certificate(token.derive(f"grpc tls {side}", 64), f"seed-{side}")


def tls_identity(security: Security, side: Side) -> TlsIdentity:
    """What a side shows and trusts.

    Raises:
        UsageError: a file of the user's own cannot be read, is none of its kind, or its time has passed.
    """
    if security.tls is not None and security.tls.given:
        if side == "learner" and not (security.tls.cert or security.tls.key):
            raise UsageError("--tls-ca needs --tls-cert and --tls-key: a learner shows a certificate of its own")
        return _own_identity(security.tls)
    other: Side = "actor" if side == "learner" else "learner"
    key, chain = _made_from_token(security.token, side)
    return TlsIdentity(key, chain, _made_from_token(security.token, other)[1], "seed-learner")


def _own_identity(files: TlsFiles) -> TlsIdentity:
    key = chain = None
    if files.cert or files.key:
        if not (files.cert and files.key):
            given, missing = ("--tls-cert", "--tls-key") if files.cert else ("--tls-key", "--tls-cert")
            raise UsageError(f"{given} needs {missing}: a certificate and its private key belong together")
        chain, key = _read_pem(files.cert, "--tls-cert"), _read_pem(files.key, "--tls-key")
        _check_time(chain, files.cert, "--tls-cert")
        _check_pair(files)
    roots = _read_pem(files.ca, "--tls-ca") if files.ca else None
    if roots is not None:
        _check_time(roots, files.ca, "--tls-ca")
    return TlsIdentity(key, chain, roots, None)


def _read_pem(path: str, flag: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read ({error.strerror}): give a PEM file") from error


def _check_time(pem: bytes, path: str, flag: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for certificate in _parse(pem, path, flag)[:1]:
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > last:
            raise UsageError(f"{flag} {path} has expired on {last:%Y-%m-%d %H:%M} UTC: renew it")
        if now < first:
            raise UsageError(
                f"{flag} {path} is not valid before {first:%Y-%m-%d %H:%M} UTC and this machine's clock says "
                f"{now:%Y-%m-%d %H:%M}: wait, or set the clock"
            )


def _parse(pem: bytes, path: str, flag: str) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise UsageError(f"{flag} {path} holds no PEM certificate: give one") from error


def _check_pair(files: TlsFiles) -> None:
    try:
        cert, key = (str(Path(path).expanduser()) for path in (files.cert, files.key))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"--tls-key {files.key} is not the private key of --tls-cert {files.cert} as PEM without a password "
            f"({getattr(error, 'reason', None) or error}): give the two that belong together"
        ) from error


# -- the proof ------------------------------------------------------------------------------------------------


class TokenAuthenticator:
    """Asks for a proof of the token; see `net.handshake.Authenticator`.

    The proof is an HMAC over everything both sides have said so far, the nonces of both among it, so that none can be
    used a second time, on another connection or with another introduction. The learner proves the same in turn.
    """

    def __init__(self, token: Token) -> None:
        self._token = token

    def challenge(self) -> dict[str, Any]:
        """A fresh nonce; a proof is asked for."""
        return {"nonce": new_nonce(), "proof_required": True}

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The learner's own proof, for a peer whose proof is good; None for another."""
        nonce, proof = message.get("nonce"), message.get("proof")
        if not is_hex(nonce) or not is_hex(proof) or len(message) != 2:
            raise ProtocolError("a proof must hold nonce and proof, 64 hexadecimal digits each")
        if not hmac.compare_digest(prove(self._token, "actor", transcript, nonce), proof):
            return None
        return {"proof": prove(self._token, "learner", transcript, nonce)}


def new_nonce() -> str:
    """64 hexadecimal digits that nobody can foretell."""
    return secrets.token_hex(_NONCE_BYTES)


def is_hex(value: object) -> TypeGuard[str]:
    """Whether it is what a nonce or proof looks like: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == 2 * _NONCE_BYTES and set(value) <= set("0123456789abcdef")


def prove(token: Token, side: Side, transcript: bytes, nonce: str) -> str:
    """A side's proof, 64 hexadecimal digits: HMAC-SHA256 (RFC 2104) over the transcript and the actor's nonce.

    Args:
        token: whose holding is proved.
        side: who proves it: one side's proof is not the other's.
        transcript: HELLO's and CHALLENGE's payloads, as `net.handshake.transcript` joins them.
        nonce: of the actor.
    """
    return hmac.new(token.derive(f"proof {side}"), transcript + bytes.fromhex(nonce), "sha256").hexdigest()
