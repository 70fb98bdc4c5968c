"""A merge server beside a real ZooKeeper: members attach, pause, die, return and haunt."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.attending import Attending
from coordinator.deployment import Member
from coordinator.membership import Coordination, Registration
from coordinator.zookeeper import Ensemble
from lmerge.errors import ConfigurationError, DetachedError, FencedError
from lmerge.server.config import ServerConfig
from lmerge.server.serving import Server
from tests.cli.running import run
from tests.coordinator.waiting import WAIT_SECONDS
from tests.server.serving import (
    Replica,
    bounded,
    channel_to,
    refusal,
    server_process,
    soon,
    target_of,
)

SESSION_SECONDS = 1.0
_DEPLOYMENTS = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A deployment of the test's own."""
    return f"served-{next(_DEPLOYMENTS)}"


@asynccontextmanager
async def serving(
    directory: Path, hosts: str, deployment: str, **options: Any
) -> AsyncIterator[Server]:
    roll = Attending(hosts, deployment, "s", session_seconds=SESSION_SECONDS, **options)
    config = ServerConfig(listen="127.0.0.1:0", data_dir=directory, durability="flush")
    server = Server(config, roll)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@contextmanager
def members(hosts: str, deployment: str) -> Iterator[Callable[[str], Awaitable[Any]]]:
    """Makes members, each with a session of its own: (registration, member, session)."""
    with ExitStack() as stack:

        async def join(stream: str) -> tuple[Registration, Member, Coordination]:
            session = Coordination(hosts, deployment, session_seconds=4.0)
            stack.enter_context(session)
            registration = Registration(session, Member("replica", stream, 0, merge="m"))
            member = await asyncio.to_thread(registration.wait, WAIT_SECONDS)
            return registration, member, session

        yield join


async def leave(session: Coordination) -> None:
    """The member's process ends."""
    await asyncio.to_thread(session.close)


def attached(server: Server) -> set[str]:
    streams = server.hub.merges["m"].host.state.streams
    return {name for name, record in streams.items() if record.attached}


async def seen(observed: Callable[[], Any]) -> None:
    """Waits until something is so, bounded."""

    async def look() -> None:
        while not observed():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), WAIT_SECONDS)


@bounded
async def _a_lost_member_detaches(tmp_path: Path, hosts: str, name: str) -> None:
    async with serving(tmp_path, hosts, name) as server, channel_to(target_of(server)) as channel:
        with members(hosts, name) as join:
            _, one, session_one = await join("a")
            _, two, session_two = await join("b")
            a = Replica(channel, stream="a", incarnation=one.incarnation)
            b = Replica(channel, stream="b", incarnation=two.incarnation)
            await a.attach()
            await b.attach()
            await a.epoch(1, [("+", 1, 5, 1, "x")], 3)
            await b.epoch(1, [("+", 1, 5, 1, "x")], 3)
            # A broken connection with a live member is a pause ...
            a.cancel()
            await seen(lambda: server.hub.merges["m"].sessions.holder("a") is None)
            # ... while a lost member is a detach, whose session is told.
            await leave(session_two)
            _, error = await refusal(b.ended())
            assert isinstance(error, DetachedError)
            assert "its member is gone" in str(error)
            assert attached(server) == {"a"}
            again = Replica(
                channel, stream="a", incarnation=one.incarnation, instance=a.hello.instance
            )
            welcome = await again.attach()
            assert welcome.next_epoch == 2
            await leave(session_one)
            await seen(lambda: not attached(server))


def test_a_lost_member_is_a_detach_and_a_broken_connection_a_pause(
    tmp_path: Path, zookeeper: Ensemble, name: str
) -> None:
    _a_lost_member_detaches(tmp_path, zookeeper.hosts, name)


@bounded
async def _a_zombie(tmp_path: Path, hosts: str, name: str) -> None:
    async with serving(tmp_path, hosts, name) as server, channel_to(target_of(server)) as channel:
        with members(hosts, name) as join:
            _, old, _ = await join("a")
            zombie = Replica(channel, incarnation=old.incarnation)
            await zombie.attach()
            await zombie.epoch(1, [("+", 1, 5, 1, "x")], 3)
            _, new, _ = await join("a")
            # Its successor has not even said hello.
            _, error = await refusal(zombie.ended())
            assert isinstance(error, FencedError)
            haunting = Replica(channel, incarnation=old.incarnation, instance=zombie.hello.instance)
            _, error = await refusal(haunting.attach())
            assert isinstance(error, FencedError)
            assert str(new.incarnation) in str(error)
            successor = Replica(channel, incarnation=new.incarnation)
            assert (await successor.attach()).next_epoch == 2
            assert attached(server) == {"a"}


def test_a_zombie_is_fenced_as_soon_as_its_successor_is_a_member(
    tmp_path: Path, zookeeper: Ensemble, name: str
) -> None:
    _a_zombie(tmp_path, zookeeper.hosts, name)


@bounded
async def _away(tmp_path: Path, ensemble: Ensemble, name: str) -> None:
    hosts = ensemble.hosts
    async with (
        serving(tmp_path / "data", hosts, name) as server,
        channel_to(target_of(server)) as channel,
    ):
        with members(hosts, name) as join:
            registration, one, session = await join("a")
            a = Replica(channel, stream="a", incarnation=one.incarnation)
            await a.attach()
            await a.epoch(1, [("+", 1, 5, 1, "x")], 3)
            await seen(lambda: ("m", "a") in server.hub.newest)
            await asyncio.to_thread(ensemble.kill, 0)
            await seen(lambda: not session.client.connected)
            # The data goes on, and so may new streams come.
            await a.epoch(2, [("+", 4, 9, 2, "x")], 7)
            b = Replica(channel, stream="b")
            await b.attach()
            await b.epoch(1, [("+", 1, 5, 1, "x")], 3)
            # The server's own session, of one second, is over when ZooKeeper comes back.
            await asyncio.to_thread(ensemble.start, 0)
            assert await asyncio.to_thread(registration.wait, WAIT_SECONDS) == one
            # A barrier: what goes after that is noticed, and nobody else went.
            _, three, session_three = await join("c")
            c = Replica(channel, stream="c", incarnation=three.incarnation)
            await c.attach()
            await leave(session_three)
            await refusal(c.ended())
            assert attached(server) == {"a", "b"}
            await a.epoch(3, [("+", 8, 12, 3, "x")], 9)


def test_a_merge_goes_on_while_zookeeper_is_away_and_loses_nobody_by_its_return(
    tmp_path: Path, own_zookeeper: Ensemble, name: str
) -> None:
    _away(tmp_path, own_zookeeper, name)


@bounded
async def _died_meanwhile(tmp_path: Path, hosts: str, name: str) -> None:
    with members(hosts, name) as join:
        _, dead, session = await join("a")
        _, alive, _ = await join("b")
        async with (
            serving(tmp_path, hosts, name) as server,
            channel_to(target_of(server)) as channel,
        ):
            await Replica(channel, stream="a", incarnation=dead.incarnation).attach()
            await Replica(channel, stream="b", incarnation=alive.incarnation).attach()
        await leave(session)
        async with serving(tmp_path, hosts, name) as server:
            assert attached(server) == {"a", "b"}
            await seen(lambda: attached(server) == {"b"})


def test_who_died_while_the_server_was_down_is_detached_after_its_start(
    tmp_path: Path, zookeeper: Ensemble, name: str
) -> None:
    _died_meanwhile(tmp_path, zookeeper.hosts, name)


@bounded
async def _lingers(tmp_path: Path, hosts: str, name: str) -> None:
    with members(hosts, name) as join:
        async with (
            serving(tmp_path, hosts, name, linger_seconds=3600.0) as server,
            channel_to(target_of(server)) as channel,
        ):
            _, one, session = await join("a")
            a = Replica(channel, incarnation=one.incarnation)
            await a.attach()
            await a.epoch(7, [("+", 1, 5, 1, "x")], 3)
            a.cancel()
            await leave(session)
            _, two, _ = await join("a")
            again = Replica(channel, incarnation=two.incarnation)
            assert (await again.attach()).next_epoch == 8
            await again.epoch(8, [("+", 4, 9, 2, "x")], 7)
            assert attached(server) == {"a"}


def test_with_a_linger_a_killed_replica_goes_on_with_its_own_stream(
    tmp_path: Path, zookeeper: Ensemble, name: str
) -> None:
    _lingers(tmp_path, zookeeper.hosts, name)


@bounded
async def _command(tmp_path: Path, hosts: str, name: str) -> None:
    options = ["--zk", hosts, "--deployment", name, "--server-name", "first"]
    with server_process(tmp_path / "data", *options) as server:
        with members(hosts, name) as join:
            _, member, session = await join("a")
            servers: dict[str, Member] = {}
            while not servers:
                servers = await soon(asyncio.to_thread(session.deployment.members, "server"))
            assert servers["first"].address == f"127.0.0.1:{server.port}"
            async with channel_to(server.target) as channel:
                a = Replica(channel, incarnation=member.incarnation)
                await a.attach()
                await leave(session)
                _, error = await refusal(a.ended())
                assert isinstance(error, DetachedError)
        assert server.terminate() == 0
    with Coordination(hosts, name) as watcher:
        deployment = await asyncio.to_thread(watcher.connect, WAIT_SECONDS)
        assert await asyncio.to_thread(deployment.members, "server") == {}


def test_the_command_registers_its_server_and_watches_its_replicas(
    tmp_path: Path, zookeeper: Ensemble, name: str
) -> None:
    _command(tmp_path, zookeeper.hosts, name)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--zk", "127.0.0.1:1", "--deployment", "a/b"], "is no name of a deployment"),
        (["--zk", "127.0.0.1:1", "--linger", "-1"], "to linger for -1 s"),
        (["--zk", "127.0.0.1:1", "--zk-credentials", "none"], "none cannot be read"),
        (["--zk", "127.0.0.1:x"], "is not HOST:PORT"),
    ],
)
def test_mistakes_are_one_line(options: list[str], complaint: str) -> None:
    result = run("server", "--listen", "127.0.0.1:0", *options)
    assert result.status == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1


def test_a_server_needs_a_name_that_can_be() -> None:
    with pytest.raises(ConfigurationError, match="is no name of a server"):
        Attending("127.0.0.1:1", "d", "a/b")
