"""Errors as statuses: each has a row, and comes out on the other side as what it was."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from lmerge import errors
from lmerge.errors import LMergeError
from lmerge.wire.statuses import DOMAIN, STATUSES, TEXT_ROOM, code_of, error_of, status_of

WAIT_SECONDS = 20


def tree(kind: type[LMergeError]) -> Iterator[type[LMergeError]]:
    yield kind
    for child in kind.__subclasses__():
        # Tests and users may have their own.
        if child.__module__ == errors.__name__:
            yield from tree(child)


EVERY = sorted({*tree(LMergeError)} - {LMergeError}, key=lambda kind: kind.__name__)
LEAVES = [kind for kind in EVERY if not kind.__subclasses__()]


def made(kind: type[LMergeError], text: str = "something is wrong: 'ä' → x") -> LMergeError:
    """An error with a text; some want more to make it of."""
    if kind is errors.InputError:
        return errors.InputError("a file", 7, text)
    if kind is errors.BrokenPromiseError:
        return errors.BrokenPromiseError("a", text, "insert [1, 2)")
    if kind is errors.JournalDamagedError:
        return errors.JournalDamagedError("arrivals", 12, text)
    return kind(text)


class Failure:
    """What gRPC raises, without gRPC."""

    def __init__(
        self, code: grpc.StatusCode, details: str | None, metadata: list[tuple[str, Any]] | None
    ) -> None:
        self._values = (code, details, metadata)

    def code(self) -> grpc.StatusCode:
        return self._values[0]

    def details(self) -> str | None:
        return self._values[1]

    def trailing_metadata(self) -> list[tuple[str, Any]] | None:
        return self._values[2]


def over(error: LMergeError) -> LMergeError:
    status = status_of(error)
    return error_of(Failure(status.code, status.details, status.trailing_metadata))


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_has_a_row(kind: type[LMergeError]) -> None:
    assert kind in STATUSES
    assert code_of(made(kind)) is STATUSES[kind]
    assert STATUSES[kind] is not grpc.StatusCode.OK


def test_every_row_is_an_error_of_the_tree() -> None:
    assert set(STATUSES) <= set(EVERY)


@pytest.mark.parametrize("kind", STATUSES)
def test_class_and_message_survive(kind: type[LMergeError]) -> None:
    error = made(kind)
    found = over(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert over(found).args == found.args  # also when it is passed on


def test_a_class_without_a_row_has_its_parents() -> None:
    class OwnError(errors.LimitError):
        pass

    assert code_of(OwnError("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = over(OwnError("x"))
    assert type(found) is errors.LimitError
    assert "x" in str(found)


def test_a_long_message_is_cut() -> None:
    assert str(over(errors.LimitError("x" * 100_000))) == "x" * (TEXT_ROOM // 3)
    assert str(over(errors.LimitError("x" * (TEXT_ROOM // 3)))) == "x" * (TEXT_ROOM // 3)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        [("grpc-status-details-bin", b"no status at all")],
        [("grpc-status-details-bin", b"")],
        [("grpc-status-details-bin", "text")],
        [("other", b"x")],
    ],
)
def test_whatever_a_stranger_answers_is_an_error_of_ours(
    code: grpc.StatusCode, metadata: list[tuple[str, Any]] | None
) -> None:
    found = error_of(Failure(code, None, metadata))
    assert isinstance(found, LMergeError)
    assert code.name in str(found)


def test_reasons_of_other_domains_do_not_count() -> None:
    status = status_of(errors.FencedError("x"))
    ((key, data),) = status.trailing_metadata
    foreign = data.replace(DOMAIN.encode(), b"xmerge")
    found = error_of(Failure(grpc.StatusCode.NOT_FOUND, "y", [(key, foreign)]))
    assert type(found) is errors.NotFoundError
    unknown = data.replace(b"FencedError", b"FancyyError")
    found = error_of(Failure(grpc.StatusCode.NOT_FOUND, "y", [(key, unknown)]))
    assert type(found) is errors.NotFoundError


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    """To a server that raises whatever it is asked for."""

    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        name, _, text = request.decode().partition(" ")
        context.abort_with_status(status_of(made(getattr(errors, name), text)))

    handler = grpc.method_handlers_generic_handler(
        "Test", {"Fail": grpc.unary_unary_rpc_method_handler(fail)}
    )
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[handler])
        port = server.add_insecure_port("localhost:0")
        server.start()
        try:
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                yield channel
        finally:
            server.stop(None).wait()


@pytest.mark.parametrize("kind", STATUSES)
@pytest.mark.parametrize("text", ["plain", "line\nline\t100% 'ä' → \U0001f40d"])
def test_over_a_socket(channel: Any, kind: type[LMergeError], text: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/Test/Fail")(f"{kind.__name__} {text}".encode(), timeout=WAIT_SECONDS)
    assert raised.value.code() is STATUSES[kind]
    found = error_of(raised.value)
    assert type(found) is kind
    assert str(found) == str(made(kind, text))


@pytest.mark.parametrize("character", ["x", "%", "\n", "ä", "→", "\U0001f40d"])
def test_a_long_message_over_a_socket_is_still_the_same_error(channel: Any, character: str) -> None:
    # Between 8 and 16 KiB gRPC refuses headers by chance: once would not be enough.
    for size in (1_000, 2_000, 3_000, 4_000, 50_000) * 4:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/Test/Fail")(
                f"FencedError {character * size}".encode(), timeout=WAIT_SECONDS
            )
        found = error_of(raised.value)
        assert type(found) is errors.FencedError, raised.value.details()
        assert set(str(found)) == {character}


def test_nobody_there_is_unavailable() -> None:
    with grpc.insecure_channel("localhost:1") as away:
        fail: Any = away.unary_unary("/Test/Fail")
        with pytest.raises(grpc.RpcError) as raised:
            fail(b"", timeout=WAIT_SECONDS)
    assert type(error_of(raised.value)) is errors.UnavailableError
