"""Who may call what, over real sockets: every role against every call, tokens, TLS, mutual TLS."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lmerge.v1 import consumer_pb2, operator_pb2, replica_pb2
from lmerge.v1.consumer_pb2_grpc import ConsumerServiceStub
from lmerge.v1.replica_pb2_grpc import ReplicaServiceStub
from lmerge.wire import rows
from tests.server.serving import (
    PAYLOAD,
    Consumer,
    Replica,
    ServerProcess,
    bounded,
    channel_to,
    operator,
    server_process,
    soon,
    starting,
)

Code = grpc.StatusCode
ROLES = ("replica", "consumer", "operator")
MERGES = ("mine", "yours")
SCHEMA = '{ k = "int64", v = "string" }'


def secret(name: str) -> str:
    return f"the-token-of-{name}"


def token(name: str, roles: tuple[str, ...], *merges: str) -> str:
    """A [[tokens]] of the configuration."""
    digest = hashlib.sha256(secret(name).encode()).hexdigest()
    return (
        f'[[tokens]]\nname = "{name}"\nsha256 = "{digest}"\n'
        f"roles = {json.dumps(list(roles))}\nmerges = {json.dumps(list(merges))}\n"
    )


def merge(name: str) -> str:
    return f'[[merges]]\nname = "{name}"\nschema = {SCHEMA}\n'


CONFIG = "".join(
    [
        *map(merge, MERGES),
        *(token(f"{role}-{name}", (role,), name) for role in ROLES for name in MERGES),
        token("all", ROLES, "*"),
    ]
)

# -- every call, as an honest caller would make it ---------------------------------------------

Call = Callable[[Any, str, Any], Awaitable[Any]]


async def attach(channel: Any, name: str, metadata: Any) -> None:
    replica = Replica(channel, name, "a", metadata=metadata)
    await replica.attach()
    await replica.end()


async def stage(channel: Any, name: str, metadata: Any) -> None:
    header = replica_pb2.StageHeader(protocol_version=1, merge=name, stream="nobody")
    requests = iter([replica_pb2.StageRequest(header=header)])
    await ReplicaServiceStub(channel).Stage(requests, metadata=metadata)


async def subscribe(channel: Any, name: str, metadata: Any) -> None:
    consumer = Consumer(channel, name, metadata=metadata)
    await consumer.open()
    consumer.cancel()


async def inspect(channel: Any, name: str, metadata: Any) -> None:
    request = consumer_pb2.InspectRequest(merge=name)
    await ConsumerServiceStub(channel).Inspect(request, metadata=metadata)


def operates(method: str, field: str = "merge", **fields: Any) -> Call:
    async def call(channel: Any, name: str, metadata: Any) -> None:
        kind = getattr(operator_pb2, f"{method}Request")
        await getattr(operator(channel), method)(kind(**{field: name}, **fields), metadata=metadata)

    return call


# What a permitted caller may hear beside OK: that there is nothing to act on.
CALLS: dict[str, tuple[str, Call, tuple[grpc.StatusCode, ...]]] = {
    "Attach": ("replica", attach, ()),
    "Stage": ("replica", stage, (Code.NOT_FOUND,)),
    "Subscribe": ("consumer", subscribe, ()),
    "Inspect": ("consumer", inspect, ()),
    "DescribeMerge": ("operator", operates("DescribeMerge"), ()),
    "CreateMerge": (
        "operator",
        operates("CreateMerge", "name", schema=rows.schema_bytes(PAYLOAD)),
        (Code.ALREADY_EXISTS,),
    ),
    "DetachStream": ("operator", operates("DetachStream", stream="nobody"), (Code.NOT_FOUND,)),
    "QuarantineStream": (
        "operator",
        operates("QuarantineStream", stream="nobody"),
        (Code.NOT_FOUND,),
    ),
    "ReleaseStream": ("operator", operates("ReleaseStream", stream="nobody"), (Code.NOT_FOUND,)),
    "SwitchStreams": ("operator", operates("SwitchStreams", on_trial=["nobody"]), ()),
    "AllowGap": ("operator", operates("AllowGap"), (Code.FAILED_PRECONDITION,)),
    "TakeSnapshot": ("operator", operates("TakeSnapshot"), ()),
    "DropSubscription": (
        "operator",
        operates("DropSubscription", subscription="nobody"),
        (Code.NOT_FOUND,),
    ),
    # The last: it takes the merge away.
    "DeleteMerge": ("operator", operates("DeleteMerge", "name"), (Code.NOT_FOUND,)),
}


def bearing(name: str | None) -> list[tuple[str, str]]:
    return [] if name is None else [("authorization", f"Bearer {secret(name)}")]


async def outcome(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await soon(call)
    except grpc.aio.AioRpcError as failure:
        return failure.code()
    return Code.OK


async def seen(channel: Any, metadata: Any) -> list[str]:
    request = operator_pb2.ListMergesRequest()
    answer = await soon(operator(channel).ListMerges(request, metadata=metadata))
    return [each.name for each in answer.merges]


# -- tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("auth")
    with server_process(folder / "data", "--durability", "flush", config=CONFIG) as server:
        yield server
        assert "by our fault" not in server.text
        assert "the-token-of" not in server.text  # a log is no place for secrets


def test_every_call_of_the_contract_is_tried() -> None:
    services = [
        (replica_pb2, "ReplicaService"),
        (consumer_pb2, "ConsumerService"),
        (operator_pb2, "OperatorService"),
    ]
    methods = {
        m.name for module, s in services for m in module.DESCRIPTOR.services_by_name[s].methods
    }
    assert methods == {*CALLS, "ListMerges"}


@pytest.mark.parametrize("call", CALLS)
def test_strangers_and_others_are_refused(server: ServerProcess, call: str) -> None:
    role, make, _ = CALLS[call]

    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            for name in (*MERGES, "nowhere"):
                # The same whether the merge is there or not.
                for metadata in (bearing(None), bearing("unknown"), [("authorization", "Basic x")]):
                    assert await outcome(make(channel, name, metadata)) == Code.UNAUTHENTICATED
            for held in ROLES:
                if held != role:
                    metadata = bearing(f"{held}-mine")
                    assert await outcome(make(channel, "mine", metadata)) == Code.PERMISSION_DENIED
            for name in ("yours", "nowhere", ""):
                metadata = bearing(f"{role}-mine")  # the right role, in another merge
                assert await outcome(make(channel, name, metadata)) == Code.PERMISSION_DENIED

    run()


def test_lists_show_only_what_the_caller_may_see(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            for role in ROLES:
                for name in MERGES:
                    assert await seen(channel, bearing(f"{role}-{name}")) == [name]
            assert await seen(channel, bearing("all")) == [*MERGES]
            assert await outcome(seen(channel, [])) == Code.UNAUTHENTICATED
            assert await outcome(seen(channel, bearing("unknown"))) == Code.UNAUTHENTICATED

    run()


def test_a_refusal_does_not_say_which_merges_there_are(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            for metadata in (bearing("replica-mine"), bearing("unknown"), []):
                told = []
                for name in ("yours", "other"):
                    with pytest.raises(grpc.aio.AioRpcError) as raised:
                        await attach(channel, name, metadata)
                    told.append((raised.value.details() or "").replace(name, "X"))
                assert told[0] == told[1]
                assert "mine" not in told[0].replace("replica-mine", "")

    run()


def test_security_turns_merges_made_by_replicas_off(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            assert await outcome(attach(channel, "new", bearing("all"))) == Code.NOT_FOUND

    run()


@pytest.mark.parametrize("holder", ["own", "all"])
def test_the_right_token_may(tmp_path: Path, holder: str) -> None:
    @bounded
    async def run(target: str) -> None:
        async with channel_to(target) as channel:
            for call, (role, make, also) in CALLS.items():
                metadata = bearing(f"{role}-mine" if holder == "own" else "all")
                code = await outcome(make(channel, "mine", metadata))
                assert code in (Code.OK, *also), call

    with server_process(tmp_path / "data", "--durability", "flush", config=CONFIG) as server:
        run(server.target)


# -- certificates ------------------------------------------------------------------------------


class Authority:
    """Makes certificates, and keeps each with its key in files."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self._write(self.file, self._signed(self._name, self._key.public_key(), None))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for the host or client of that name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._write(cert_file, self._signed(subject, key.public_key(), name))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_file, key_file

    def _write(self, file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str | None
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def credentials(root: Path, own: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=root.read_bytes(),
        private_key=own[1].read_bytes() if own else None,
        certificate_chain=own[0].read_bytes() if own else None,
    )


def test_tokens_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "authority")
    stranger = Authority(tmp_path / "elsewhere", "authority")
    cert, key = authority.issue("localhost")
    tls = f'[tls]\ncert = "{cert}"\nkey = "{key}"\n'

    @bounded
    async def run(target: str) -> None:
        async with channel_to(target, credentials(authority.file)) as channel:
            assert await outcome(attach(channel, "mine", bearing("replica-mine"))) == Code.OK
            assert await outcome(attach(channel, "mine", [])) == Code.UNAUTHENTICATED
            assert await seen(channel, bearing("consumer-yours")) == ["yours"]
        # A server whose certificate is of nobody we trust, and a caller without TLS.
        async with channel_to(target, credentials(stranger.file)) as channel:
            assert await outcome(attach(channel, "mine", bearing("all"))) == Code.UNAVAILABLE
        async with channel_to(target) as channel:
            assert await outcome(attach(channel, "mine", bearing("all"))) == Code.UNAVAILABLE

    with server_process(tmp_path / "data", config=CONFIG + tls) as server:
        run(server.target)


def test_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "authority")
    stranger = Authority(tmp_path / "elsewhere", "authority")
    cert, key = authority.issue("localhost")
    config = "".join(
        [
            *map(merge, MERGES),
            *(
                f'[[clients]]\nname = "{role}.example"\nroles = ["{role}"]\nmerges = ["mine"]\n'
                for role in ROLES
            ),
            f'[tls]\ncert = "{cert}"\nkey = "{key}"\nclient_ca = "{authority.file}"\n',
        ]
    )
    owners = {role: authority.issue(f"{role}.example") for role in ROLES}
    unknown = authority.issue("unknown.example")
    forged = stranger.issue("replica.example")

    @bounded
    async def run(target: str) -> None:
        for held in ROLES:
            own = credentials(authority.file, owners[held])
            async with channel_to(target, own) as channel:
                assert await seen(channel, []) == ["mine"]
                for role, make in (
                    ("replica", attach),
                    ("consumer", subscribe),
                    ("operator", operates("DescribeMerge")),
                ):
                    expected = Code.OK if role == held else Code.PERMISSION_DENIED
                    assert await outcome(make(channel, "mine", [])) == expected
                    assert await outcome(make(channel, "yours", [])) == Code.PERMISSION_DENIED
                # Who sends a token is who the token says, and nobody knows this one.
                assert await outcome(attach(channel, "mine", bearing("x"))) == Code.UNAUTHENTICATED
        async with channel_to(target, credentials(authority.file, unknown)) as channel:
            assert await outcome(attach(channel, "mine", [])) == Code.UNAUTHENTICATED
            assert await outcome(seen(channel, [])) == Code.UNAUTHENTICATED
        for own in (credentials(authority.file), credentials(authority.file, forged)):
            async with channel_to(target, own) as channel:  # these get as far as no call
                assert await outcome(attach(channel, "mine", [])) == Code.UNAVAILABLE

    with server_process(tmp_path / "data", config=config) as server:
        run(server.target)


# -- without security --------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7070", "example.org:7070"])
def test_without_security_the_server_stays_on_this_machine(tmp_path: Path, listen: str) -> None:
    with starting("--listen", listen, "--data-dir", tmp_path / "data") as server:
        assert server.wait() == 2
        (line,) = server.log
        assert "configure [[tokens]], or [tls] with client_ca, or listen on 127.0.0.1" in line
    assert not (tmp_path / "data").exists()


def test_tls_without_tokens_is_no_security(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path / "certificates", "authority").issue("localhost")
    config = tmp_path / "config.toml"
    config.write_text(f'listen = "0.0.0.0:0"\n[tls]\ncert = "{cert}"\nkey = "{key}"\n')
    with starting("--config", config, "--data-dir", tmp_path / "data") as server:
        assert server.wait() == 2
        assert len(server.log) == 1


def test_with_tokens_the_server_may_be_reached_and_warns_without_tls(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('listen = "0.0.0.0:0"\n' + token("all", ROLES, "*"))
    with starting("--config", config, "--data-dir", tmp_path / "data") as server:
        server.wait_for_line("listening on 0.0.0.0:")
        assert "tokens travel unencrypted" in server.text
