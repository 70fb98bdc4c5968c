"""How a server starts, stops and says so."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lmerge.server.config import ServerConfig
from tests.server.serving import (
    Consumer,
    Replica,
    bounded,
    channel_to,
    refusal,
    server_here,
    server_process,
    soon,
    starting,
    target_of,
)


@bounded
async def test_health_and_reflection_come_from_their_libraries(tmp_path: Path) -> None:
    config = ServerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with server_here(config) as server, channel_to(target_of(server)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "lmerge.v1.ReplicaService"):
            answer = await soon(health.Check(health_pb2.HealthCheckRequest(service=service)))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await soon(call.read())).list_services_response.service
        assert {"lmerge.v1.ReplicaService", "lmerge.v1.ConsumerService"} <= {s.name for s in listed}


@bounded
async def test_sigterm_drains_health_first_and_loses_nothing(tmp_path: Path) -> None:
    with server_process(tmp_path / "data") as server:
        async with channel_to(server.target) as channel:
            a = Replica(channel)
            await a.attach()
            await a.epoch(0, [("+", 1, 5, 1, "x")], stable=3)
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await soon(watch.read())).status == health_pb2.HealthCheckResponse.SERVING
            server.process.send_signal(signal.SIGTERM)
            assert (await soon(watch.read())).status == health_pb2.HealthCheckResponse.NOT_SERVING
            code, _ = await refusal(a.ended())
            assert code is grpc.StatusCode.UNAVAILABLE
            watch.cancel()
        assert await asyncio.to_thread(server.wait) == 0
        assert "stopped" in server.text
        assert "Traceback" not in server.text
    with server_process(tmp_path / "data") as server:
        assert "0 arrivals replayed" in server.text
        async with channel_to(server.target) as channel:
            assert (await Replica(channel).attach()).next_epoch == 1
            reader = Consumer(channel)
            await reader.open()
            assert await reader.until_stable(3) == [("+", 1, 5, 1, "x"), ("stable", 3)]


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    config = "drain_seconds = 3600\n"
    with server_process(tmp_path / "data", config=config) as server:

        @bounded
        async def hold_a_call_open() -> None:
            async with channel_to(server.target) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
                await soon(watch.read())
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.wait_for_line, "stopping")
                server.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(server.wait) == 130

        hold_a_call_open()
        assert "second signal" in server.text


def test_a_port_that_is_taken_is_told_in_a_line(tmp_path: Path) -> None:
    with server_process(tmp_path / "one") as first:
        said = ("--listen", f"127.0.0.1:{first.port}", "--data-dir", tmp_path / "two")
        with starting(*said) as second:
            assert second.wait() == 2
            assert "in use" in second.text
            assert "Traceback" not in second.text


def test_a_data_directory_that_is_in_use_is_told(tmp_path: Path) -> None:
    with server_process(tmp_path / "data") as first:

        @bounded
        async def make_a_merge() -> None:
            async with channel_to(first.target) as channel:
                await Replica(channel).attach()

        make_a_merge()
        with starting("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data") as second:
            assert second.wait() == 2
            assert "Traceback" not in second.text


@bounded
async def test_without_durability_a_restart_is_another_generation(tmp_path: Path) -> None:
    config = ServerConfig(listen="127.0.0.1:0", data_dir=tmp_path, durability="none")
    generations = set()
    for _ in range(2):
        async with server_here(config) as server, channel_to(target_of(server)) as channel:
            welcome = await Replica(channel).attach()
            assert not welcome.HasField("next_epoch")
            generations.add(welcome.generation)
    assert len(generations) == 2
    assert not any(tmp_path.iterdir())


@bounded
async def test_a_stream_that_is_silent_for_too_long_is_detached(tmp_path: Path) -> None:
    from lmerge.server.silence import detach_the_silent

    config = ServerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with server_here(config) as server, channel_to(target_of(server)) as channel:
        a, b = Replica(channel, stream="a"), Replica(channel, stream="b")
        await a.attach()
        await b.attach()
        b.cancel()
        served = server.hub.merges["m"]
        while served.sessions.holder("b") is not None:
            await asyncio.sleep(0)
        now = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            if now > 100:
                raise asyncio.CancelledError
            await asyncio.sleep(0)

        watching = asyncio.create_task(detach_the_silent(server.hub, 20.0, lambda: now, sleep))
        await asyncio.wait((watching,))
        assert list(served.host.state.merge.streams()) == ["a"]
