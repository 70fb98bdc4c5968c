"""Hostile peers at the socket: every call, with what no honest client would send.

While they go on, a replica and a consumer of another merge work on the same server, and see
exactly what they would see alone. The server does not fail by its own fault, ends every call that
it should end, and tells nobody about its inside.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lmerge.times import BEGINNING, INFINITY
from lmerge.v1 import common_pb2, consumer_pb2, operator_pb2, replica_pb2
from lmerge.wire import rows
from tests.server.serving import (
    PAYLOAD,
    WAIT_SECONDS,
    Consumer,
    Replica,
    bounded,
    channel_to,
    data_of,
    hello_of,
    operator,
    refusal,
    server_process,
    soon,
)

SEEDS: Final = (1, 2, 3)
ATTACKERS: Final = 4
ROUNDS: Final = 150  # of each attacker
HEALTHY: Final = "healthy"
REPLICAS, CONSUMERS, OPERATORS = (
    f"/lmerge.v1.{name}Service/" for name in ("Replica", "Consumer", "Operator")
)

# What no peer is to hear: where we are, and how Python shows things.
LEAKS: Final = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|/tmp|/work|/home|object at 0x|<class|Exception|"
    r"(?<!\w)(Key|Value|Type|Index|Attribute|Overflow|Decode|Assertion|Runtime)Error"
)
OURS: Final = re.compile(r"by our fault|has stopped|Traceback|is not served|Exception| ERROR ")

# -- honest messages ---------------------------------------------------------------------------

NAMES: Final = ("m", "n", "m", "n", "o", "healthy2")
STREAMS: Final = ("a", "b", "c")
STRANGE_TEXTS: Final = (
    "", "../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "\0", "é", "\U0001f40d", ".new", "x.new",
    "x.gone", " ", "a" * 128, "a" * 129, "a" * 100_000, "\n2026 forged line", "%s%n", "R9", "R0",
    "R4", "quorum(nan)", "quorum(1e999)", "quorum(0)", "quorum(0.5)", "quorum(", "final", "eager",
    "majority",
)  # fmt: skip
STRANGE_NUMBERS: Final = (
    0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -1, -2, -(2**31), -(2**62), BEGINNING, BEGINNING + 1, INFINITY - 1,
)  # fmt: skip
EVENTS: Final = [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, None), ("+", 3, INFINITY, 3, "z")]
STRANGE_EVENTS: Final[list[Any]] = [
    [],
    [("+", 5, 5, 1, "x")],
    [("+", 9, 5, 1, "x")],
    [("+", BEGINNING, 5, 1, "x")],
    [("+", INFINITY, INFINITY, 1, "x")],
    [("+", -5, INFINITY, 1, "x"), ("~", -5, INFINITY, -5, 1, "x")],
    [("~", 1, 5, 7, 1, "x")],
    [("~", 1, 5, BEGINNING, 1, "x")],
    [("~", 77, 78, 79, 1, "nobody")],
    [("+", 1, 5, 1, "x")] * 3,
]


def attach_script(pick: random.Random, merge: str) -> list[Message]:
    hello = hello_of(merge, pick.choice(STREAMS), lineage=pick.choice(("l1", "l2")))
    if pick.random() < 0.3:
        hello.from_time = pick.choice((0, 3, 100))
    requests = [replica_pb2.AttachRequest(hello=hello)]
    for epoch in range(pick.choice((1, 2))):
        write = replica_pb2.Write(epoch=epoch, batch=data_of(EVENTS))
        requests.append(replica_pb2.AttachRequest(write=write))
        commit = replica_pb2.Commit(epoch=epoch, stable=2, rows=3, counters={"skipped": 1.0})
        requests.append(replica_pb2.AttachRequest(commit=commit))
    requests.append(replica_pb2.AttachRequest(abort=replica_pb2.Abort(epoch=7)))
    if pick.random() < 0.3:
        requests.append(replica_pb2.AttachRequest(detach=replica_pb2.Detach(reason="done")))
    return list(requests)


def stage_script(pick: random.Random, merge: str) -> list[Message]:
    header = replica_pb2.StageHeader(
        protocol_version=1,
        merge=merge,
        stream=pick.choice(STREAMS),
        incarnation=pick.choice((1, 2, 3)),
        epoch=pick.choice((0, 1, 2)),
        part=replica_pb2.Part(partition=1, attempt=2),
    )
    batch = replica_pb2.StageRequest(batch=data_of(EVENTS))
    return [replica_pb2.StageRequest(header=header), batch, batch]


def subscribe_script(pick: random.Random, merge: str) -> list[Message]:
    wanted = consumer_pb2.Open(protocol_version=1, merge=merge, delivery=pick.choice((1, 2, 3)))  # type: ignore[arg-type]  # an int is one
    if pick.random() < 0.4:
        wanted.subscription = pick.choice(("s", "t"))
    kind = pick.choice(("beginning", "now", "position", ""))
    position = common_pb2.Position(generation="x", sequence=1)
    if kind == "position":
        wanted.position.CopyFrom(position)
    elif kind:
        getattr(wanted, kind).SetInParent()
    acknowledge = consumer_pb2.Acknowledge(position=position)
    return [
        consumer_pb2.SubscribeRequest(open=wanted),
        consumer_pb2.SubscribeRequest(acknowledge=acknowledge),
    ]


def _operate(kind: Callable[..., Message], *more: str) -> Callable[..., list[Message]]:
    def script(pick: random.Random, merge: str) -> list[Message]:
        fields: dict[str, Any] = {}
        for name in more:
            fields[name] = merge if name in ("merge", "name") else pick.choice(STREAMS)
            if name in ("on_trial", "admitted"):
                fields[name] = [fields[name]]
        request = kind(**fields)
        if isinstance(request, operator_pb2.CreateMergeRequest):
            request.schema = rows.schema_bytes(PAYLOAD) if pick.random() < 0.5 else b""
            request.options.insert_policy = pick.choice(("first", "leader", ""))
        return [request]

    return script


STREAMED: Final = {
    REPLICAS + "Attach": attach_script,
    REPLICAS + "Stage": stage_script,
    CONSUMERS + "Subscribe": subscribe_script,
}
SINGLE: Final = {
    CONSUMERS + "Inspect": _operate(consumer_pb2.InspectRequest, "merge"),
    OPERATORS + "ListMerges": _operate(operator_pb2.ListMergesRequest),
    OPERATORS + "DescribeMerge": _operate(operator_pb2.DescribeMergeRequest, "merge"),
    OPERATORS + "CreateMerge": _operate(operator_pb2.CreateMergeRequest, "name"),
    OPERATORS + "DeleteMerge": _operate(operator_pb2.DeleteMergeRequest, "name"),
    OPERATORS + "DetachStream": _operate(operator_pb2.DetachStreamRequest, "merge", "stream"),
    OPERATORS + "QuarantineStream": _operate(
        operator_pb2.QuarantineStreamRequest, "merge", "stream", "reason"
    ),
    OPERATORS + "ReleaseStream": _operate(operator_pb2.ReleaseStreamRequest, "merge", "stream"),
    OPERATORS + "SwitchStreams": _operate(
        operator_pb2.SwitchStreamsRequest, "merge", "on_trial", "admitted"
    ),
    OPERATORS + "AllowGap": _operate(operator_pb2.AllowGapRequest, "merge"),
    OPERATORS + "TakeSnapshot": _operate(operator_pb2.TakeSnapshotRequest, "merge"),
    OPERATORS + "DropSubscription": _operate(
        operator_pb2.DropSubscriptionRequest, "merge", "subscription"
    ),
}


def test_every_call_of_the_contract_is_attacked() -> None:
    services = [
        (replica_pb2, "Replica"), (consumer_pb2, "Consumer"), (operator_pb2, "Operator"),
    ]  # fmt: skip
    known = {
        f"/{service.full_name}/{method.name}"
        for module, name in services
        for service in [module.DESCRIPTOR.services_by_name[f"{name}Service"]]
        for method in service.methods
    }
    assert known == {*STREAMED, *SINGLE}


# -- dishonest ones ----------------------------------------------------------------------------


def strange(field: FieldDescriptor, pick: random.Random) -> Any:
    """A value of the field's type that nobody expects."""
    kinds = FieldDescriptor
    if field.type == kinds.TYPE_STRING:
        return pick.choice(STRANGE_TEXTS)
    if field.type == kinds.TYPE_BYTES:
        data = pick.choice((data_of(pick.choice(STRANGE_EVENTS)), rows.schema_bytes(PAYLOAD), b""))
        if pick.random() < 0.4 and data:
            data = flipped(data, pick)
        return data
    if field.type == kinds.TYPE_DOUBLE:
        return pick.choice((0.0, -1.0, float("nan"), float("inf"), 1e308))
    if field.type == kinds.TYPE_BOOL:
        return pick.random() < 0.5
    bits, signed = {
        kinds.TYPE_INT64: (64, True), kinds.TYPE_UINT64: (64, False),
        kinds.TYPE_UINT32: (32, False), kinds.TYPE_ENUM: (32, True),
    }[field.type]  # fmt: skip
    value = pick.choice(STRANGE_NUMBERS) % (1 << bits)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def change(message: Message, pick: random.Random) -> None:
    """One field somewhere in the message is removed, or gets a strange value."""
    present: list[Any] = [field for field, _ in message.ListFields()]
    inner = [f for f in present if f.message_type is not None and not f.is_repeated]
    if inner and pick.random() < 0.8:
        change(getattr(message, pick.choice(inner).name), pick)
        return
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = pick.choice(fields)
    if pick.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries = getattr(message, field.name)
        for number in range(pick.choice((1, 100))):
            entries[f"{pick.choice(STRANGE_TEXTS)[:200]}{number}"] = pick.choice(
                (0.0, float("nan"))
            )
    elif field.is_repeated and field.message_type is not None:
        for _ in range(pick.choice((1, 50))):
            change(getattr(message, field.name).add(), pick)
    elif field.is_repeated:
        getattr(message, field.name).extend(
            strange(field, pick) for _ in range(pick.choice((1, 9)))
        )
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()  # a wrong oneof
        change(getattr(message, field.name), pick)
    else:
        setattr(message, field.name, strange(field, pick))


def flipped(data: bytes, pick: random.Random) -> bytes:
    """Some bytes are others, or missing."""
    wrong = bytearray(data)
    for _ in range(pick.choice((1, 1, 3, 20))):
        wrong[pick.randrange(len(wrong))] = pick.randrange(256)
    return bytes(wrong[: pick.randrange(1, len(wrong) + 1)] if pick.random() < 0.2 else wrong)


def spoiled(messages: list[Message], pick: random.Random) -> list[bytes]:
    """A script with something wrong in it, serialized."""
    script = list(messages)
    way = pick.random()
    if way < 0.15:
        pick.shuffle(script)
    elif way < 0.25:
        script = [pick.choice(script) for _ in range(pick.choice((0, 1, 2, 6)))]
    elif way < 0.85:
        for _ in range(pick.choice((1, 1, 2, 4))):
            change(pick.choice(script), pick)
    sent = [message.SerializeToString() for message in script]
    if sent and pick.random() < 0.25:
        place = pick.randrange(len(sent))
        garbage = pick.randbytes(pick.choice((0, 1, 30, 5_000)))
        sent[place] = flipped(sent[place], pick) if sent[place] and way < 0.9 else garbage
    return sent


# -- attacks -----------------------------------------------------------------------------------


async def attack(channel: Any, pick: random.Random) -> str:
    """One dishonest call; returns what it was, after it has ended as it should."""
    path = pick.choice([*STREAMED, *STREAMED, *SINGLE])
    merge = pick.choice(NAMES)
    if path in SINGLE:
        sent = spoiled(SINGLE[path](pick, merge), pick)
        data = sent[0] if sent else b""
        call = channel.unary_unary(path)(data, timeout=WAIT_SECONDS)
        if pick.random() < 0.1:
            call.cancel()
        await judged(call)
        return path
    sent = spoiled(STREAMED[path](pick, merge), pick)
    calls = channel.stream_unary if path.endswith("Stage") else channel.stream_stream
    call = calls(path)(timeout=WAIT_SECONDS)
    manner = pick.choice(("half-close", "half-close", "cancel", "leave"))
    try:
        for data in sent:
            await soon(call.write(data))
        if manner == "half-close":
            await soon(call.done_writing())
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.UsageError):
        pass  # the server has ended it already
    if manner == "cancel" or (manner == "leave" and path.endswith("Stage")):
        call.cancel()
    elif path.endswith("Attach") and manner == "half-close":
        with suppress(grpc.aio.AioRpcError):  # it ends by itself; how is judged below
            while await soon(call.read()) is not grpc.aio.EOF:
                pass
    elif not path.endswith("Stage") and sent and manner == "half-close":
        with_answer = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([with_answer], timeout=WAIT_SECONDS)
        assert done, f"no answer to {path}"
        with_answer.exception()
        call.cancel()
    else:
        call.cancel()
    await judged(call)
    return path


async def judged(call: Any) -> None:
    """Waits for the call's end, and reads how it ended."""
    try:
        code = await soon(call.code())
    except asyncio.CancelledError:
        if call.cancelled():
            return
        raise
    details = await soon(call.details()) or ""
    if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
        return
    assert not LEAKS.search(details), (code, details)
    # Our own gRPC says INTERNAL when it has written to a call that the server had ended: only the
    # server's words count here, and its log, below.
    allowed = code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert allowed, (code, details)
    assert "own fault" not in details


async def attacks(target: str, seed: int, attacker: int) -> None:
    pick = random.Random(f"{seed} {attacker}")
    async with channel_to(target) as channel:
        for number in range(ROUNDS):
            state = pick.getstate()
            try:
                await attack(channel, pick)
            except Exception as error:
                repeat = random.Random()
                repeat.setstate(state)
                path = repeat.choice([*STREAMED, *STREAMED, *SINGLE])
                raise AssertionError(
                    f"seed {seed}, attacker {attacker}, round {number}, {path}: {error!r}"
                ) from error


# -- the others --------------------------------------------------------------------------------


async def honest_replica(channel: Any, over: asyncio.Event) -> int:
    """Commits epoch after epoch; returns the last stable."""
    replica = Replica(channel, HEALTHY, "good")
    await replica.attach()
    number = 0
    while not (over.is_set() and number >= 3):
        number += 1
        at = 10 * number
        events = [("+", at, at + 5, number, "w"), ("+", at + 1, INFINITY, number, None)]
        await replica.epoch(number, events, at + 2)
        await replica.write(number + 1, [("~", at + 1, INFINITY, at + 3, number, None)])
    await replica.epoch(number + 1, [], INFINITY)
    assert (await replica.end()) == grpc.StatusCode.OK
    return number


def inserts_of(number: int) -> list[Any]:
    found: list[Any] = []
    for each in range(1, number + 1):
        at = 10 * each
        found += [("+", at, at + 5, each, "w"), ("+", at + 1, INFINITY, each, None)]
    return found


async def nosy_streams(channel: Any, over: asyncio.Event, pick: random.Random) -> None:
    """Attach to the healthy merge, write there what is wrong, and never commit."""
    while not over.is_set():
        replica = Replica(channel, HEALTHY, pick.choice(("x", "y")))
        await replica.attach()
        data = flipped(data_of(EVENTS), pick)
        await replica.send(write=replica_pb2.Write(epoch=1, batch=data))
        with suppress(grpc.aio.AioRpcError):
            await replica.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_peers_harm_nobody(tmp_path: Path, seed: int) -> None:
    @bounded
    async def run() -> None:
        over = asyncio.Event()
        async with channel_to(server.target) as channel:
            await operator(channel).CreateMerge(
                operator_pb2.CreateMergeRequest(name=HEALTHY, schema=rows.schema_bytes(PAYLOAD))
            )
            consumer = Consumer(channel, HEALTHY)
            await consumer.open()
            honest = asyncio.create_task(honest_replica(channel, over))
            reading = asyncio.create_task(consumer.until_stable(INFINITY))
            nosy = asyncio.create_task(nosy_streams(channel, over, random.Random(seed)))
            try:
                await asyncio.gather(
                    *(attacks(server.target, seed, number) for number in range(ATTACKERS))
                )
            finally:
                over.set()
            await soon(nosy)
            number = await soon(honest)
            output = await soon(reading)
            assert [e for e in output if e[0] == "+"] == inserts_of(number)
            stables = [e[1] for e in output if e[0] == "stable"]
            assert stables == [10 * n + 2 for n in range(1, number + 1)] + [INFINITY]
            adjusts = [e for e in output if e[0] == "~"]
            assert adjusts == [
                ("~", 10 * n + 1, INFINITY, 10 * n + 3, n, None) for n in range(1, number + 1)
            ]
            # It still serves newcomers.
            again = Consumer(channel, HEALTHY)
            await again.open()
            assert await again.until_stable(INFINITY) == output

    with server_process(tmp_path / "data", "--durability", "flush") as server:
        try:
            run()
            assert server.process.poll() is None
            assert server.terminate() == 0
        finally:
            faulty = [n for n, line in enumerate(server.log) if OURS.search(line)]
            # With what the server says of the first of them.
            told = "\n".join(server.log[faulty[0] : faulty[0] + 40]) if faulty else ""
            assert not faulty, f"seed {seed}:\n{told}"


@bounded
async def _a_replay(target: str) -> None:
    async with channel_to(target) as channel:
        code, _ = await refusal(
            operator(channel).DescribeMerge(operator_pb2.DescribeMergeRequest(merge="../x"))
        )
        assert code == grpc.StatusCode.NOT_FOUND
        summaries = (await operator(channel).ListMerges(operator_pb2.ListMergesRequest())).merges
        assert [each.fault for each in summaries if each.fault] == []


def test_what_hostile_peers_left_behind_can_be_replayed(tmp_path: Path) -> None:
    """A crash after an attack: the next start must be able to replay whatever was logged."""

    @bounded
    async def run(target: str) -> None:
        await asyncio.gather(*(attacks(target, 99, number) for number in range(ATTACKERS)))

    data = tmp_path / "data"
    with server_process(data, "--durability", "flush") as server:
        run(server.target)
        server.kill()
    with server_process(data, "--durability", "flush") as server:
        _a_replay(server.target)
        assert server.terminate() == 0
        assert not OURS.search(server.text), server.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]
