"""Keys for both transports: derived from the token, or certificates given by the user.

Both sides derive the same keys: every holder of the token has the learner's and the actors' keys. ZeroMQ encrypts with
CURVE (RFC 26). gRPC uses TLS: each side presents a self-signed P-256 certificate derived from the token, and trusts
only the other side's, which it derives too. Each connection is encrypted with its own keys (forward secrecy): the token
does not decrypt connections that were recorded earlier.
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
# Certificates derived from the token do not depend on the clock: they are always valid.
_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class TlsFiles:
    """Certificates given by the user, for gRPC; "" for a file that is not given.

    Attributes:
        cert, key: PEM files of this side's certificate (with intermediate ones) and its private key.
        ca: PEM file of the authority that must have issued the other side's certificate.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""

    @property
    def given(self) -> bool:
        """Whether any file is given."""
        return bool(self.cert or self.key or self.ca)


@dataclass(frozen=True)
class Security:
    """The secrets with which one side protects its connections.

    Attributes:
        token: the shared token.
        tls: for gRPC, certificates that replace those derived from the token; None: derived certificates.
    """

    token: Token
    tls: TlsFiles | None = None


@dataclass(frozen=True)
class TlsIdentity:
    """The certificates that one side of a TLS connection presents and trusts, as PEM.

    Attributes:
        key, chain: private key and certificates; None: this side presents none.
        roots: the authorities of the other side's certificate; None: an actor uses gRPC's default roots, a learner
            requires no certificate.
        name: the name in the learner's certificate; None: the host of the address.
    """

    key: bytes | None = field(repr=False)
    chain: bytes | None
    roots: bytes | None
    name: str | None


# -- ZeroMQ ---------------------------------------------------------------------------------------------------


def curve_keys(token: Token, side: Side) -> tuple[bytes, bytes]:
    """Return the CURVE keys of a side: (public, secret), each 40 characters of Z85."""
    import zmq
    from zmq.utils import z85

    secret = z85.encode(token.derive(f"zeromq curve {side}"))
    return zmq.curve_public(secret), secret


# -- gRPC -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _certificate(seed: bytes, name: str) -> tuple[bytes, bytes]:
    """Return a P-256 key and its self-signed certificate, as PEM; a deterministic function of the 64-byte seed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    # 384 bits modulo a prime of 256 bits: the bias of the key is below 2^-128.
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
    """Return the certificates that a side presents and trusts.

    Raises:
        UsageError: a file given by the user is unreadable or invalid, or a certificate is expired or not valid yet.
    """
    if security.tls is not None and security.tls.given:
        if side == "learner" and not (security.tls.cert or security.tls.key):
            raise UsageError("--tls-ca needs --tls-cert and --tls-key: a learner must present its own certificate")
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
            raise UsageError(f"{flag} {path} expired on {last:%Y-%m-%d %H:%M} UTC: renew it")
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
        raise UsageError(f"{flag} {path} contains no PEM certificate: give one") from error


def _check_pair(files: TlsFiles) -> None:
    try:
        cert, key = (str(Path(path).expanduser()) for path in (files.cert, files.key))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"--tls-key {files.key} is not the private key of --tls-cert {files.cert} as PEM without a password "
            f"({getattr(error, 'reason', None) or error}): give a matching pair"
        ) from error


# -- the proof ------------------------------------------------------------------------------------------------


class TokenAuthenticator:
    """Requires a proof of the token; see `net.handshake.Authenticator`.

    The proof is an HMAC over all messages so far and the nonces of both sides, so that it cannot be reused, on another
    connection or with another HELLO. The learner answers with its own proof.
    """

    def __init__(self, token: Token) -> None:
        self._token = token

    def challenge(self) -> dict[str, Any]:
        """Return a fresh nonce; a proof is required."""
        return {"nonce": new_nonce(), "proof_required": True}

    def answer(self, transcript: bytes, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the learner's own proof, or None if the peer's is wrong."""
        nonce, proof = message.get("nonce"), message.get("proof")
        if not is_hex(nonce) or not is_hex(proof) or len(message) != 2:
            raise ProtocolError("a proof must hold nonce and proof, 64 hexadecimal digits each")
        if not hmac.compare_digest(prove(self._token, "actor", transcript, nonce), proof):
            return None
        return {"proof": prove(self._token, "learner", transcript, nonce)}


def new_nonce() -> str:
    """Return an unpredictable nonce: 64 hexadecimal digits."""
    return secrets.token_hex(_NONCE_BYTES)


def is_hex(value: object) -> TypeGuard[str]:
    """Whether a value has the form of a nonce or proof: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == 2 * _NONCE_BYTES and set(value) <= set("0123456789abcdef")


def prove(token: Token, side: Side, transcript: bytes, nonce: str) -> str:
    """Return a proof, 64 hexadecimal digits: HMAC-SHA256 (RFC 2104) over the transcript and the actor's nonce.

    Args:
        token: the token to prove.
        side: the side that proves it; the two sides' proofs differ.
        transcript: HELLO's and CHALLENGE's payloads, as joined by `net.handshake.transcript`.
        nonce: the actor's nonce.
    """
    return hmac.new(token.derive(f"proof {side}"), transcript + bytes.fromhex(nonce), "sha256").hexdigest()
