"""Who may call: tokens and certificates, roles, merges.

Callers may rely on this: once security is on, everything that the configuration does not allow is
refused, and a refusal is the same whether or not the merge exists. A token is compared with every
one that is configured, by digest and in constant time, so that how long an answer takes tells
nothing. While security is off, everybody may do everything; the configuration then keeps the
server on loopback.

A caller that sends a token is who the token says, and a wrong token is refused whatever the
certificate. Without one, it is who its certificate says.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from lmerge.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from lmerge.server.config import (
    EVERY_MERGE,
    ClientConfig,
    Role,
    ServerConfig,
    TlsConfig,
    TokenConfig,
)

Metadata = Iterable[tuple[str, str | bytes]]
Identities = Iterable[bytes] | None
"""As ``context.invocation_metadata()`` and ``context.peer_identities()`` give them."""

TOKEN_CHARACTERS_MAX: Final = 4_096
_BEARER: Final = re.compile(r"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody the server knows, and what they may do: pairs of roles and merges."""

    name: str  # for people: token 'x', or certificate 'y'
    rights: tuple[tuple[frozenset[Role], frozenset[str]], ...]

    def may(self, role: Role, merge: str) -> bool:
        """Whether the caller has the role in the merge."""
        return any(role in roles and _within(merge, merges) for roles, merges in self.rights)

    def sees(self, merge: str) -> bool:
        """Whether the caller has any role in the merge."""
        return any(roles and _within(merge, merges) for roles, merges in self.rights)


class Guard:
    """Decides, from the configuration alone; nothing is kept of the calls."""

    def __init__(self, config: ServerConfig) -> None:
        self._secured = config.secured
        self._tokens = [
            (bytes.fromhex(token.sha256), Caller(f"token {token.name!r}", (_rights(token),)))
            for token in config.tokens
        ]
        self._clients = {client.name: _rights(client) for client in config.clients}

    def caller(self, metadata: Metadata | None, peer_identities: Identities) -> Caller:
        """Who is calling; UnauthenticatedError when nobody knows."""
        if not self._secured:
            return _ANYBODY
        sent = [value for key, value in metadata or () if key.lower() == "authorization"]
        if sent:
            return self._bearer(sent)
        names = [name.decode("utf-8", "replace") for name in peer_identities or ()]
        if names:
            return self._owner(names)
        wanted = "a token (authorization: Bearer …)" if self._tokens else "a client certificate"
        raise UnauthenticatedError(f"this server wants to know who is calling: send {wanted}")

    def permit(
        self, metadata: Metadata | None, peer_identities: Identities, role: Role, merge: str
    ) -> None:
        """Returns when the caller has the role in the merge.

        Raises UnauthenticatedError for a stranger and PermissionDeniedError for anybody else.
        """
        caller = self.caller(metadata, peer_identities)
        if not caller.may(role, merge):
            raise PermissionDeniedError(f"{caller.name} has no role {role!r} in merge {merge!r}")

    def visible(self, metadata: Metadata | None, peer_identities: Identities, merge: str) -> bool:
        """Whether the caller may know that the merge is there; strangers are refused."""
        return self.caller(metadata, peer_identities).sees(merge)

    def _bearer(self, sent: Sequence[str | bytes]) -> Caller:
        value = sent[0]
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        match = _BEARER.fullmatch(text) if len(text) <= TOKEN_CHARACTERS_MAX else None
        if len(sent) != 1 or match is None:
            raise UnauthenticatedError("the authorization is not one 'Bearer TOKEN'")
        digest = hashlib.sha256(match[1].encode()).digest()
        found = None
        for known, caller in self._tokens:  # to the end, also after a match
            if hmac.compare_digest(digest, known):
                found = caller
        if found is None:
            raise UnauthenticatedError("the token is not known here")
        return found

    def _owner(self, names: Sequence[str]) -> Caller:
        rights = tuple(self._clients[name] for name in names if name in self._clients)
        shown = ", ".join(repr(name) for name in names)[:200]
        if not rights:
            raise UnauthenticatedError(
                f"the certificate of {shown} is in no [[clients]], and no token was sent"
            )
        return Caller(f"certificate {shown}", rights)


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """What gRPC serves with; ConfigurationError when the files cannot be used together."""
    key = _contents("tls.key", tls.key)
    cert = _contents("tls.cert", tls.cert)
    try:
        # gRPC would only fail its handshakes later, without a reason: OpenSSL says it now.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An encrypted key must not ask on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigurationError(_complaint(tls, cert, key, error)) from None
    authority = None
    if tls.client_ca is not None:
        authority = _contents("tls.client_ca", tls.client_ca)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(tls.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"tls.client_ca: {tls.client_ca} is no certificate authority in PEM: {error}"
            ) from None
    return grpc.ssl_server_credentials(
        [(key, cert)],
        root_certificates=authority,
        require_client_auth=authority is not None,
    )


def _complaint(tls: TlsConfig, cert: bytes, key: bytes, error: Exception) -> str:
    if not _PEM.search(cert):
        return f"tls.cert: {tls.cert} holds no certificate in PEM"
    if b"ENCRYPTED" in key:
        return f"tls.key: {tls.key} is encrypted with a password: store it without one"
    if b"PRIVATE KEY-----" not in key:
        return f"tls.key: {tls.key} holds no private key in PEM"
    if "MISMATCH" in str(error).upper():
        return f"tls.key: {tls.key} is not the key of the certificate in {tls.cert}"
    return f"tls: {tls.cert} and {tls.key} cannot be used: {error}"


def _contents(key: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{key}: {file} cannot be read: {error.strerror}") from None


def _rights(config: TokenConfig | ClientConfig) -> tuple[frozenset[Role], frozenset[str]]:
    return frozenset(config.roles), frozenset(config.merges)


def _within(merge: str, merges: frozenset[str]) -> bool:
    return EVERY_MERGE in merges or merge in merges


_ANYBODY: Final = Caller(
    "anybody",
    ((frozenset[Role](("replica", "consumer", "operator")), frozenset((EVERY_MERGE,))),),
)
