"""The configuration: what is read, and that every mistake is told with its place."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from lmerge.errors import ConfigurationError
from lmerge.server.config import (
    GIB,
    MIB,
    ClientConfig,
    Limits,
    MergeConfig,
    ServerConfig,
    TlsConfig,
    TokenConfig,
    address,
    arrow_type,
    byte_size,
    check_name,
    is_loopback,
    load,
    require_loopback,
)

TOKEN = "a-token-of-some-length"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
EVERYTHING = f"""
listen = "0.0.0.0:0"
data_dir = "data"
durability = "flush"
metrics_listen = "0.0.0.0:9464"
metrics_public = true
log_format = "json"
create_on_attach = true
detach_after_seconds = 2.5
drain_seconds = 3

[limits]
message_bytes = "1MiB"
epoch_bytes = 2097152
merges = 2
retention_bytes = "1.5GiB"
retention_seconds = 60

[tls]
cert = "server.pem"
key = "/keys/server.key"
client_ca = "ca.pem"

[[tokens]]
name = "operators"
sha256 = "{DIGEST}"
roles = ["operator", "consumer"]
merges = ["*"]

[[tokens]]
name = "replicas"
token_file = "replicas.token"
role = "replica"
merges = ["orders"]

[[clients]]
name = "spiffe://site/replica"
roles = ["replica"]
merges = ["orders", "clicks"]

[[merges]]
name = "orders"
restriction = "R3"
insert_policy = "quorum(0.5)"
adjust_policy = "eager"
stable_lag = 7
divergence = "majority"

[merges.schema]
key = "int64"
at = "timestamp[us, tz=UTC]"

[[merges]]
name = "clicks"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text, "utf-8")
    return path


def complaint(folder: Path, text: str, **overrides: object) -> str:
    """What is said of a file; always one line that begins with the file."""
    path = write(folder, text)
    with pytest.raises(ConfigurationError) as caught:
        load(path, overrides)
    said = str(caught.value)
    assert "\n" not in said
    place, _, rest = said.partition(": ")
    assert place in (str(path), "command line")
    return rest if place == str(path) else said


def test_without_a_file_everything_has_its_default() -> None:
    config = load(None, {})
    assert config == ServerConfig()
    assert (config.listen, config.durability, config.create_on_attach) == (
        "127.0.0.1:7070", "fsync", True,
    )  # fmt: skip
    assert config.limits == Limits(16 * MIB, 256 * MIB, 256 * MIB, GIB, 64, 64, 256, 1024, 4 * GIB)
    assert not config.secured


def test_a_file_may_say_everything(tmp_path: Path) -> None:
    (tmp_path / "replicas.token").write_text("another-token-entirely\n")
    config = load(write(tmp_path, EVERYTHING))
    other = hashlib.sha256(b"another-token-entirely").hexdigest()
    assert config == ServerConfig(
        listen="0.0.0.0:0",
        data_dir=tmp_path / "data",
        durability="flush",
        metrics_listen="0.0.0.0:9464",
        metrics_public=True,
        log_format="json",
        create_on_attach=True,
        detach_after_seconds=2.5,
        drain_seconds=3,
        limits=dataclasses.replace(
            Limits(),
            message_bytes=MIB,
            epoch_bytes=2 * MIB,
            merges=2,
            retention_bytes=3 * GIB // 2,
            retention_seconds=60,
        ),
        merges=(
            MergeConfig(
                "orders",
                "R3",
                "quorum(0.5)",
                "eager",
                7,
                "majority",
                pa.schema([("key", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]),
            ),
            MergeConfig("clicks"),
        ),
        tls=TlsConfig(tmp_path / "server.pem", Path("/keys/server.key"), tmp_path / "ca.pem"),
        tokens=(
            TokenConfig("operators", DIGEST, ("consumer", "operator"), ("*",)),
            TokenConfig("replicas", other, ("replica",), ("orders",)),
        ),
        clients=(ClientConfig("spiffe://site/replica", ("replica",), ("orders", "clicks")),),
    )
    assert config.secured
    options = config.merges[0].options()
    assert (options.restriction, options.stable_lag) == ("R3", 7)


def test_the_command_line_comes_before_the_file_and_none_says_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, 'listen = "127.0.0.1:1"\ndata_dir = "x"\n[limits]\nmerges = 3\n')
    config = load(
        path, {"listen": "127.0.0.1:2", "data_dir": Path("y"), "limits.streams": 5, "tls.key": None}
    )
    assert (config.listen, config.data_dir) == ("127.0.0.1:2", Path("y"))
    assert (config.limits.merges, config.limits.streams) == (3, 5)
    assert config.tls is None


def test_the_digest_of_a_token_is_not_in_what_may_be_logged(tmp_path: Path) -> None:
    (tmp_path / "replicas.token").write_text("another-token-entirely\n")
    assert DIGEST not in repr(load(write(tmp_path, EVERYTHING)))


def test_merges_are_made_on_attach_only_while_security_is_off(tmp_path: Path) -> None:
    token = f'[[tokens]]\nname="a"\nsha256="{DIGEST}"\nrole="replica"\nmerges=["*"]\n'
    assert load(write(tmp_path, "")).create_on_attach
    assert not load(write(tmp_path, token)).create_on_attach
    assert load(write(tmp_path, "create_on_attach = true\n" + token)).create_on_attach


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lisen = 1", "lisen: there is no such key; did you mean 'listen'?"),
        ("[limit]\nmerges = 1", "limit: there is no such key; did you mean 'limits'?"),
        ("[limits]\nmessages_bytes = 1", "limits.messages_bytes: there is no such key; did you"),
        ("zzz = 1", "zzz: there is no such key; possible: clients,"),
        ("[[merges]]\nname='a'\nnam='b'", "merges #1: nam: there is no such key"),
        ("listen = 7070", "listen: 7070 is no address"),
        ("listen = '7070'", "listen: '7070' is no address"),
        ("listen = '127.0.0.1:65536'", "listen: '127.0.0.1:65536' is no address"),
        ("listen = '::1:7070'", "listen: '::1:7070' is no address"),
        ("listen = '0.0.0.0:1'", "listen: listening on 0.0.0.0:1 would let everybody"),
        ("listen = 'example.org:1'", "listen: listening on example.org:1 would let everybody"),
        ("metrics_listen = '0.0.0.0:1'", "metrics_listen: 0.0.0.0:1 can be reached from"),
        ("data_dir = 3", "data_dir: 3 is no path"),
        ("durability = 'fsink'", "durability: 'fsink' is not possible; did you mean 'fsync'?"),
        ("log_format = []", "log_format: [] is not possible; possible: text, json"),
        ("create_on_attach = 1", "create_on_attach: 1 is neither true nor false"),
        ("drain_seconds = -1", "drain_seconds: -1 is not possible: seconds from 0"),
        ("drain_seconds = nan", "drain_seconds: nan is not possible"),
        ("drain_seconds = true", "drain_seconds: True is not possible"),
        ("limits = 3", "limits: 3 is no table: write [limits]"),
        ("[limits]\nmerges = 0", "limits.merges: 0 is not possible: a whole number from 1"),
        ("[limits]\nstreams = 1025", "limits.streams: 1025 is not possible"),
        ("[limits]\nmerges = 1.5", "limits.merges: 1.5 is not possible"),
        ("[limits]\nepoch_bytes = '64 apples'", "limits.epoch_bytes: '64 apples' is no size"),
        ("[limits]\nepoch_bytes = 0", "limits.epoch_bytes: 0 is not possible: from 1"),
        ("[limits]\nmessage_bytes = '2GiB'", "limits.message_bytes: '2GiB' is not possible"),
        ("[limits]\nmessage_bytes = '1GiB'", "limits.message_bytes: 1073741824 bytes can never"),
        ("merges = 3", "merges: this is no list of tables: write [[merges]]"),
        ("[merges]\nname = 'a'", "merges: this is no list of tables"),
        ("[[merges]]", "merges #1: name: is missing"),
        ("[[merges]]\nname = '../x'", "merges #1: name: '../x' is no name of a merge"),
        ("[[merges]]\nname = 'a'\n[[merges]]\nname = 'a'", "merges: there are two of the name"),
        ("[[merges]]\nname='a'\nrestriction='R5'", "merges #1: restriction: 'R5' is not possible"),
        ("[[merges]]\nname='a'\ninsert_policy='last'", "merges #1: insert_policy: unknown insert"),
        ("[[merges]]\nname='a'\nrestriction='R0'\ninsert_policy='final'", "needs restriction R3"),
        ("[[merges]]\nname='a'\nstable_lag=-1", "merges #1: stable_lag: -1 is not possible"),
        ("[[merges]]\nname='a'\nschema={}", "merges #1: schema: {} is no table with columns"),
        ("[[merges]]\nname='a'\nschema={k='int46'}", "merges #1: schema: 'int46' is no type"),
        ("[[merges]]\nname='a'\nschema={vs='int64'}", "schema: 'vs' cannot be a column"),
        ("[[merges]]\nname='a'\nschema={k=1}", "merges #1: schema: column 'k': 1 is no name"),
        ("[limits]\nmerges=1\n[[merges]]\nname='a'\n[[merges]]\nname='b'", "merges: these are 2"),
        ("[tls]\ncert = 'a'", "tls.key: is missing: TLS needs both"),
        ("[tls]\nclient_ca = 'a'", "tls.cert: is missing"),
        ("[tls]\ncert='a'\nkey='b'\nclient_ca='c'", "tls.client_ca: certificates are asked for"),
        ("[[clients]]\nname='a'\nroles=['replica']\nmerges=['*']", "clients: these name certif"),
        ("[[tokens]]\nname='a'", "tokens #1: sha256: needed is either"),
        ("[[tokens]]\nname='a'\nsha256='12'", "tokens #1: sha256: is no SHA-256"),
        ("[[tokens]]\nname='a'\ntoken_file='none'", "tokens #1: token_file: "),
        ("[[tokens]]\nname='a'\nsha256='D'\nmerges=['*']", "tokens #1: roles: is missing"),
        ("[[tokens]]\nname='a'\nsha256='D'\nroles=['replica']", "tokens #1: merges: is missing"),
        ("[[tokens]]\nname='a'\nsha256='D'\nroles=[]\nmerges=['*']", "roles: [] is no list"),
        ("[[tokens]]\nname='a'\nsha256='D'\nrole='operatr'\nmerges=['*']", "did you mean 'opera"),
        ("[[tokens]]\nname='a'\nsha256='D'\nrole='replica'\nmerges=['a*']", "'a*' is no name of"),
        ("[[tokens]]\nname='a'\nsha256='D'\nrole='replica'\nroles=['replica']\nmerges=['*']",
         "roles: there is 'role' as well"),
        ("x = !", "this is no TOML: Invalid value (at line 1, column 5)"),
    ],
)  # fmt: skip
def test_every_mistake_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(tmp_path, text.replace("'D'", f"'{DIGEST}'"))


def test_mistakes_of_the_command_line_are_told_as_such(tmp_path: Path) -> None:
    assert complaint(tmp_path, "", listen="x").startswith("command line: listen: 'x' is no address")
    assert "command line: limits.merges: 0" in complaint(tmp_path, "", **{"limits.merges": 0})
    assert "command line: limits.mergs" in complaint(tmp_path, "", **{"limits.mergs": 1})
    assert "command line: colour" in complaint(tmp_path, "", colour="red")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml: cannot be read: No such file"):
        load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.toml: this is no TOML"):
        load(tmp_path / "binary.toml")


@pytest.mark.parametrize("content", [b"", b"short", b"two tokens in one line\n", b"\xff" * 20])
def test_a_token_file_must_hold_a_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    text = "[[tokens]]\nname='a'\ntoken_file='t'\nrole='replica'\nmerges=['*']"
    assert complaint(tmp_path, text).startswith("tokens #1: token_file: ")


def test_two_tokens_must_differ(tmp_path: Path) -> None:
    token = "[[tokens]]\nname='{}'\nsha256='" + DIGEST + "'\nrole='replica'\nmerges=['*']\n"
    assert "'a' is the token of another" in complaint(
        tmp_path, token.format("a") + token.format("b")
    )
    assert "two of the name 'a'" in complaint(tmp_path, token.format("a") + token.format("a"))


@pytest.mark.parametrize("name", ["a", "a.b", "-", "_x-1.Y", "9", "x" * 128])
def test_names_that_are_possible(name: str) -> None:
    check_name("stream", name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "a/b", "a\\b", "a b", "a\n", "ä", "a\0", "*", "x" * 129]
)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name of a stream: possible are"):
        check_name("stream", name)


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65_535)),
        ("localhost:7070", ("localhost", 7070)),
    ],
)
def test_addresses(listen: str, parts: tuple[str, int]) -> None:
    assert address(listen) == parts
    assert is_loopback(listen)
    require_loopback(listen)


@pytest.mark.parametrize("listen", ["", ":1", "[]:1", "a:", "a:x", "a:-1", "a:٣", "[::1", "::1"])
def test_what_is_no_address(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address: possible is HOST:PORT"):
        address(listen)


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[fe80::1%eth0]:1", "localhost.example.org:1"]
)
def test_what_others_can_reach_is_refused(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=r"configure \[\[tokens\]\]"):
        require_loopback(listen)


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("5", 5), ("5B", 5), ("1 KiB", 1024), ("1kb", 1000), ("1.5 MiB", 3 << 19),
     ("2TiB", 2 << 40)],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", [True, 1.5, None, "", "MiB", "-1", "1e9", "1 PiB", "9" * 400])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ConfigurationError, match="is no size"):
        byte_size(text)


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.timestamp("ns"), pa.date32(),
     pa.timestamp("ms", tz="Europe/Berlin"), pa.timestamp("us", tz="+02:00"),
     pa.decimal128(10, 2)],
)  # fmt: skip
def test_types_are_written_as_arrow_shows_them(kind: pa.DataType) -> None:
    assert arrow_type(str(kind)) == kind


@pytest.mark.parametrize(
    "name", ["", "int", "decimal128(99, 2)", "list<int64>", "timestamp[us, 3]"]
)
def test_what_is_no_type(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no type of a column: possible are"):
        arrow_type(name)


def test_tokens_without_encryption_beyond_loopback_are_a_caution(tmp_path: Path) -> None:
    token = f'[[tokens]]\nname="a"\nsha256="{DIGEST}"\nrole="replica"\nmerges=["*"]\n'
    assert load(write(tmp_path, token)).cautions() == []
    said = load(write(tmp_path, 'listen = "0.0.0.0:1"\n' + token)).cautions()
    assert [caution.split(":")[0] for caution in said] == ["tokens travel unencrypted to 0.0.0.0"]
    assert "loses what was acknowledged" in load(None, {"durability": "none"}).cautions()[0]
