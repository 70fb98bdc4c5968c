"""Streams on trial over the wire, and over a server's death."""

from __future__ import annotations

from pathlib import Path

from lmerge.errors import ConfigurationError
from lmerge.v1 import operator_pb2
from tests.server.serving import (
    Consumer,
    Replica,
    bounded,
    channel_to,
    operator,
    refusal,
    server_process,
    soon,
)

EVENTS = [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, "y")]
LIES = [("+", 1, 5, 1, "x"), ("+", 2, 8, 2, "y")]


def switch(**fields: object) -> operator_pb2.SwitchStreamsRequest:
    return operator_pb2.SwitchStreamsRequest(merge="m", **fields)  # type: ignore[arg-type]


def test_a_trial_outlives_the_server_and_ends_when_it_is_switched(tmp_path: Path) -> None:
    @bounded
    async def before(target: str) -> None:
        async with channel_to(target) as channel:
            stays = Replica(channel, stream="stays")
            await stays.attach()
            await soon(operator(channel).SwitchStreams(switch(on_trial=["new", "later"])))
            new = Replica(channel, stream="new", instance="i")
            assert (await new.attach()).state == "joining"
            await new.epoch(1, LIES, 50)
            await stays.epoch(1, EVENTS, 4)

    @bounded
    async def after(target: str) -> None:
        async with channel_to(target) as channel:
            later = Replica(channel, stream="later")
            assert (await later.attach()).state == "joining"
            stays = Replica(channel, stream="stays", instance="j")
            await stays.attach()
            await stays.epoch(2, [], 20)
            describe = operator_pb2.DescribeMergeRequest(merge="m")
            found = await soon(operator(channel).DescribeMerge(describe))
            assert list(found.on_trial) == ["later", "new"]
            streams = {each.name: each for each in found.streams}
            new = streams["new"]
            assert (new.on_trial, new.verified) == (True, 1)
            assert (new.diverged_start, new.diverged_end) == (8, 9)
            assert not streams["stays"].HasField("diverged_start")
            for request, complaint in (
                (switch(on_trial=["a"], admitted=["a"]), "cannot be on trial and admitted"),
                (switch(on_trial=["../a"]), "no name of a stream"),
                (switch(admitted=["later"], before=19), "too late to switch"),
            ):
                _, error = await refusal(operator(channel).SwitchStreams(request))
                assert isinstance(error, ConfigurationError)
                assert complaint in str(error)
            await soon(operator(channel).SwitchStreams(switch(admitted=["later"], before=20)))
            assert (await later.epoch(1, [("+", 21, 30, 3, "z")], 25)).state == "joined"
            consumer = Consumer(channel)
            await consumer.open()
            seen = await consumer.until_stable(25)
            assert [row for row in seen if row[0] != "stable"] == [*EVENTS, ("+", 21, 30, 3, "z")]

    with server_process(tmp_path / "data") as server:
        before(server.target)
        server.kill()
    with server_process(tmp_path / "data") as server:
        after(server.target)
