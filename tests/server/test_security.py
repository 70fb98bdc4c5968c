"""Who may call what: the guard alone, and behind a real gRPC server with certificates."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lmerge.errors import ConfigurationError, PermissionDeniedError, UnauthenticatedError
from lmerge.server.config import ClientConfig, Role, ServerConfig, TlsConfig, TokenConfig
from lmerge.server.security import Guard, server_credentials

ROLES: tuple[Role, ...] = get_args(Role)
WAIT_SECONDS = 20


def token(name: str, roles: tuple[Role, ...], *merges: str) -> TokenConfig:
    return TokenConfig(name, hashlib.sha256(f"token-{name}".encode()).hexdigest(), roles, merges)


def bearing(name: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "x"), ("authorization", f"Bearer token-{name}")]


def allowed(guard: Guard, metadata: Any, identities: Any, role: Role, merge: str) -> bool:
    try:
        guard.permit(metadata, identities, role, merge)
    except PermissionDeniedError:
        return False
    return True


TOKENS = (
    *(token(role, (role,), "mine") for role in ROLES),
    token("everything", ROLES, "*"),
    token("watcher", ("operator",), "*"),
    token("nothing", (), "mine"),
)
SECURED = ServerConfig(tokens=TOKENS)


@pytest.mark.parametrize("wanted", ROLES)
@pytest.mark.parametrize("held", ROLES)
def test_a_role_allows_its_own_calls_and_no_others(held: Role, wanted: Role) -> None:
    guard = Guard(SECURED)
    assert allowed(guard, bearing(held), None, wanted, "mine") == (held == wanted)
    assert not allowed(guard, bearing(held), None, wanted, "yours")


@pytest.mark.parametrize("role", ROLES)
def test_a_star_is_every_merge_and_still_only_its_roles(role: Role) -> None:
    guard = Guard(SECURED)
    assert allowed(guard, bearing("everything"), None, role, "whatever")
    assert allowed(guard, bearing("watcher"), None, role, "whatever") == (role == "operator")
    assert not allowed(guard, bearing("nothing"), None, role, "mine")


def test_a_merge_is_seen_by_those_with_any_role_in_it() -> None:
    guard = Guard(SECURED)
    assert guard.visible(bearing("replica"), None, "mine")
    assert not guard.visible(bearing("replica"), None, "yours")
    assert not guard.visible(bearing("nothing"), None, "mine")
    assert guard.visible(bearing("watcher"), None, "yours")
    with pytest.raises(UnauthenticatedError):
        guard.visible([], None, "mine")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        [("token", "token-everything")],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "token-everything")],
        [("authorization", "Basic token-everything")],
        [("authorization", "Bearer token-everythin")],
        [("authorization", "Bearer token-everything ")],
        [("authorization", "Bearer token-everything\n")],
        [("authorization", "Bearer TOKEN-EVERYTHING")],
        [("authorization", "Bearer tökén")],
        [("authorization", "Bearer " + "x" * 5_000)],
        [("authorization", b"Bearer \xff")],
        [("authorization", "Bearer token-everything"), ("authorization", "Bearer x")],
        [("authorization", f"Bearer {TOKENS[0].sha256}")],
    ],
)
def test_no_token_or_a_wrong_one_is_a_stranger(metadata: Any, role: Role) -> None:
    with pytest.raises(UnauthenticatedError):
        Guard(SECURED).permit(metadata, None, role, "mine")


@pytest.mark.parametrize("text", ["Bearer token-replica", "bearer  token-replica"])
@pytest.mark.parametrize("key", ["authorization", "Authorization"])
def test_a_token_may_be_written_as_http_allows(key: str, text: str) -> None:
    Guard(SECURED).permit([(key, text)], None, "replica", "mine")
    Guard(SECURED).permit([(key, text.encode())], None, "replica", "mine")


@pytest.mark.parametrize("name", ["replica", "nothing", "unknown"])
def test_a_token_is_compared_with_all_of_them_in_constant_time(name: str) -> None:
    guard = Guard(SECURED)
    with mock.patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compare:
        try:
            guard.caller(bearing(name), None)
        except UnauthenticatedError:
            assert name == "unknown"
        assert compare.call_count == len(TOKENS)
    assert all(len(side) == 32 for call in compare.call_args_list for side in call.args)


def test_what_is_refused_says_who_and_never_the_token() -> None:
    with pytest.raises(PermissionDeniedError) as denied:
        Guard(SECURED).permit(bearing("replica"), None, "operator", "mine")
    assert str(denied.value) == "token 'replica' has no role 'operator' in merge 'mine'"
    with pytest.raises(UnauthenticatedError) as stranger:
        Guard(SECURED).permit(bearing("secret"), None, "operator", "mine")
    assert "secret" not in str(stranger.value)


@pytest.mark.parametrize("role", ROLES)
def test_without_security_everybody_may_do_everything(role: Role) -> None:
    guard = Guard(ServerConfig())
    guard.permit(None, None, role, "any")
    guard.permit(bearing("unknown"), [b"x"], role, "any")
    assert guard.visible(None, None, "any")


MUTUAL = ServerConfig(
    tls=TlsConfig(Path("c"), Path("k"), Path("ca")),
    clients=(
        ClientConfig("replica.example", ("replica",), ("mine",)),
        ClientConfig("spiffe://site/reader", ("consumer",), ("*",)),
    ),
)


def test_certificates_have_the_roles_of_their_names() -> None:
    guard = Guard(MUTUAL)
    assert allowed(guard, None, [b"replica.example"], "replica", "mine")
    assert not allowed(guard, None, [b"replica.example"], "replica", "yours")
    assert not allowed(guard, None, [b"replica.example"], "consumer", "mine")
    both = [b"replica.example", b"spiffe://site/reader", b"unknown"]
    assert allowed(guard, None, both, "replica", "mine")
    assert allowed(guard, None, both, "consumer", "yours")
    # The roles of one name are not those of the merges of the other.
    assert not allowed(guard, None, both, "replica", "yours")


@pytest.mark.parametrize(
    "identities",
    [
        None,
        [],
        iter(()),
        [b"other"],
        [b"Replica.Example"],
        [b"*"],
        [b"replica.example\0"],
        [b"\xff"],
    ],
)
def test_certificates_of_other_names_are_strangers(identities: Any) -> None:
    with pytest.raises(UnauthenticatedError):
        Guard(MUTUAL).permit(None, identities, "replica", "mine")


def test_a_certificate_alone_allows_nothing_when_no_name_is_configured() -> None:
    guard = Guard(ServerConfig(tls=MUTUAL.tls))
    with pytest.raises(UnauthenticatedError):
        guard.permit(None, [b"replica.example"], "replica", "mine")


def test_who_sends_a_token_is_who_the_token_says() -> None:
    guard = Guard(ServerConfig(tls=MUTUAL.tls, clients=MUTUAL.clients, tokens=TOKENS))
    known = [b"replica.example"]
    assert allowed(guard, bearing("operator"), known, "operator", "mine")
    assert not allowed(guard, bearing("operator"), known, "replica", "mine")
    assert allowed(guard, None, known, "replica", "mine")
    with pytest.raises(UnauthenticatedError):
        guard.permit(bearing("unknown"), known, "replica", "mine")


# -- real certificates -------------------------------------------------------------------------


class Authority:
    """Makes certificates, and keeps each with its key in files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.certificate = self._signed(self._name, self._key.public_key(), [], authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *alternatives: x509.GeneralName) -> tuple[Path, Path]:
        """A certificate and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_named(name), key.public_key(), list(alternatives))
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(_pem(key, serialization.NoEncryption()))
        return cert_file, key_file

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey,
        alternatives: list[x509.GeneralName],
        *,
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey, lock: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def server_files(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server", x509.DNSName("localhost"))


@contextmanager
def serving(config: ServerConfig) -> Iterator[int]:
    """A gRPC server whose only call, by the role and merge in its request, asks the guard."""
    guard = Guard(config)

    def ask(request: bytes, context: grpc.ServicerContext) -> bytes:
        role, merge = request.decode().split()
        identities = context.peer_identities()
        try:
            guard.permit(context.invocation_metadata(), identities, role, merge)  # type: ignore[arg-type]  # in the tests only these
        except UnauthenticatedError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except PermissionDeniedError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return b"yes"

    handler = grpc.method_handlers_generic_handler(
        "Test", {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    )
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[handler])
        assert config.tls is not None
        port = server.add_secure_port("localhost:0", server_credentials(config.tls))
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def ask(
    port: int,
    root: Path,
    role: str,
    merge: str,
    own: tuple[Path, Path] | None = None,
    bearer: str | None = None,
) -> str:
    """The answer, or the name of the status."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=root.read_bytes(),
        private_key=own[1].read_bytes() if own else None,
        certificate_chain=own[0].read_bytes() if own else None,
    )
    metadata = [("authorization", f"Bearer {bearer}")] if bearer else []
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        call: Callable[..., bytes] = channel.unary_unary("/Test/Ask")
        try:
            return call(
                f"{role} {merge}".encode(), timeout=WAIT_SECONDS, metadata=metadata
            ).decode()
        except grpc.RpcError as error:
            return str(error.code().name)


def test_tokens_over_tls(authority: Authority, server_files: tuple[Path, Path]) -> None:
    config = ServerConfig(tls=TlsConfig(*server_files), tokens=TOKENS)
    with serving(config) as port:
        root = authority.file
        for held in ROLES:
            for wanted in ROLES:
                answer = ask(port, root, wanted, "mine", bearer=f"token-{held}")
                assert answer == ("yes" if held == wanted else "PERMISSION_DENIED")
        assert ask(port, root, "replica", "yours", bearer="token-replica") == "PERMISSION_DENIED"
        assert ask(port, root, "replica", "mine", bearer="token-x") == "UNAUTHENTICATED"
        assert ask(port, root, "replica", "mine") == "UNAUTHENTICATED"
        # A certificate that nobody asked for names nobody.
        own = authority.issue("replica.example")
        assert ask(port, root, "replica", "mine", own) == "UNAUTHENTICATED"


def test_certificates_name_their_owners(
    authority: Authority, server_files: tuple[Path, Path], tmp_path: Path
) -> None:
    config = ServerConfig(
        tls=TlsConfig(*server_files, client_ca=authority.file), clients=MUTUAL.clients
    )
    common = authority.issue("replica.example")
    alternative = authority.issue("whoever", x509.UniformResourceIdentifier("spiffe://site/reader"))
    # The common name does not count beside an alternative one.
    mixed = authority.issue("replica.example-2", x509.DNSName("other.example"))
    (tmp_path / "elsewhere").mkdir()
    forged = Authority(tmp_path / "elsewhere", "authority").issue("replica.example")
    with serving(config) as port:
        root = authority.file
        assert ask(port, root, "replica", "mine", common) == "yes"
        assert ask(port, root, "operator", "mine", common) == "PERMISSION_DENIED"
        assert ask(port, root, "replica", "yours", common) == "PERMISSION_DENIED"
        assert ask(port, root, "consumer", "yours", alternative) == "yes"
        assert ask(port, root, "replica", "mine", mixed) == "UNAUTHENTICATED"
        # These do not get as far as a call.
        assert ask(port, root, "replica", "mine") == "UNAVAILABLE"
        assert ask(port, root, "replica", "mine", forged) == "UNAVAILABLE"


def test_files_that_cannot_be_served_with_are_told(
    authority: Authority, server_files: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = server_files
    _, other_key = authority.issue("other")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        _pem(ec.generate_private_key(ec.SECP256R1()), serialization.BestAvailableEncryption(b"x"))
    )
    empty, torn, absent = tmp_path / "empty", tmp_path / "torn.pem", tmp_path / "absent"
    empty.write_bytes(b"")
    torn.write_bytes(cert.read_bytes()[:200])
    for tls, said in (
        (TlsConfig(absent, key), f"tls.cert: {absent} cannot be read: No such file"),
        (TlsConfig(cert, absent), f"tls.key: {absent} cannot be read: No such file"),
        (TlsConfig(cert, tmp_path), f"tls.key: {tmp_path} cannot be read: Is a directory"),
        (TlsConfig(cert, key, absent), f"tls.client_ca: {absent} cannot be read"),
        (TlsConfig(empty, key), f"tls.cert: {empty} holds no certificate"),
        (TlsConfig(torn, key), f"tls.cert: {torn} holds no certificate"),
        (TlsConfig(cert, empty), f"tls.key: {empty} holds no private key"),
        (TlsConfig(cert, cert), f"tls.key: {cert} holds no private key"),
        (TlsConfig(cert, other_key), f"{other_key} is not the key of the certificate in {cert}"),
        (TlsConfig(cert, encrypted), f"tls.key: {encrypted} is encrypted with a password"),
        (TlsConfig(cert, key, empty), f"tls.client_ca: {empty} is no certificate authority"),
        (TlsConfig(cert, key, key), f"tls.client_ca: {key} is no certificate authority"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            server_credentials(tls)
        assert said in str(caught.value)
    server_credentials(TlsConfig(cert, key, authority.file))
