"""The service for operators: see ``proto/lmerge/v1/operator.proto`` for the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from lmerge.errors import ConfigurationError, NotFoundError
from lmerge.server.calls import Context, Desk, finished
from lmerge.server.config import check_name
from lmerge.server.hub import Served
from lmerge.server.sessions import Traffic
from lmerge.times import BEGINNING
from lmerge.v1 import log_pb2, operator_pb2
from lmerge.v1.operator_pb2_grpc import OperatorServiceServicer
from lmerge.wire import rows

_COUNTS = (
    "share", "inserts", "adjusts", "stables", "dropped", "late", "ignored", "conflicts",
    "verified", "divergent", "skipped", "stable", "reason", "state", "on_trial",
)  # fmt: skip


class Operators(OperatorServiceServicer):
    """Where operators look and act."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def ListMerges(self, request: Any, context: Context) -> Any:  # noqa: N802
        """The merges that the caller may see."""
        return await self._desk.answered(context, self._list(context))

    async def DescribeMerge(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Everything about one merge."""
        return await self._act(context, request.merge, self._describe)

    async def CreateMerge(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A new merge."""

        async def create() -> operator_pb2.CreateMergeResponse:
            self._desk.permit(context, "operator", request.name)
            schema = rows.schema_of(request.schema) if request.schema else None
            hub = self._desk.hub
            await finished(hub.create(request.name, request.options, schema, None))
            return operator_pb2.CreateMergeResponse()

        return await self._desk.answered(context, create())

    async def DeleteMerge(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A merge and all its data are gone."""

        async def delete() -> operator_pb2.DeleteMergeResponse:
            self._desk.permit(context, "operator", request.name)
            await finished(self._desk.hub.delete(request.name))
            return operator_pb2.DeleteMergeResponse()

        return await self._desk.answered(context, delete())

    async def DetachStream(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A stream leaves."""

        async def detach(served: Served) -> operator_pb2.DetachStreamResponse:
            record = served.host.state.streams.get(request.stream)
            if record is not None and request.incarnation not in (0, record.incarnation):
                raise NotFoundError(
                    f"stream {request.stream!r} has incarnation {record.incarnation}, not"
                    f" {request.incarnation}"
                )
            reason = request.reason or "an operator detached it"
            await served.leave(request.stream, reason)
            return operator_pb2.DetachStreamResponse()

        return await self._act(context, request.merge, detach)

    async def QuarantineStream(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A stream does not count any more."""

        async def quarantine(served: Served) -> operator_pb2.QuarantineStreamResponse:
            reason = request.reason or "an operator said so"
            arrival = log_pb2.StreamQuarantined(stream=request.stream, reason=reason[:1000])
            await served.host.submit(log_pb2.Arrival(quarantined=arrival))
            return operator_pb2.QuarantineStreamResponse()

        return await self._act(context, request.merge, quarantine)

    async def ReleaseStream(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A quarantined stream may attach anew."""

        async def release(served: Served) -> operator_pb2.ReleaseStreamResponse:
            states = served.host.state.merge.streams()
            state = states.get(request.stream)
            if state is None:
                raise NotFoundError(f"stream {request.stream!r} is not attached")
            if state.value != "quarantined":
                raise ConfigurationError(
                    f"stream {request.stream!r} is {state.value}, not quarantined"
                )
            await served.leave(request.stream, "released from quarantine: attach anew")
            return operator_pb2.ReleaseStreamResponse()

        return await self._act(context, request.merge, release)

    async def SwitchStreams(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Some streams go on trial, and others are admitted."""

        async def switch(served: Served) -> operator_pb2.SwitchStreamsResponse:
            for name in (*request.on_trial, *request.admitted):
                check_name("stream", name)
            if both := sorted(set(request.on_trial) & set(request.admitted)):
                raise ConfigurationError(f"stream {both[0]!r} cannot be on trial and admitted")
            switched = log_pb2.StreamsSwitched(
                on_trial=request.on_trial, admitted=request.admitted,
                before=request.before if request.HasField("before") else None,
            )  # fmt: skip
            await served.host.submit(log_pb2.Arrival(switched=switched))
            return operator_pb2.SwitchStreamsResponse()

        return await self._act(context, request.merge, switch)

    async def AllowGap(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A stalled merge goes on."""

        async def allow(served: Served) -> operator_pb2.AllowGapResponse:
            await served.host.submit(log_pb2.Arrival(gap_allowed=log_pb2.GapAllowed()))
            return operator_pb2.AllowGapResponse()

        return await self._act(context, request.merge, allow)

    async def TakeSnapshot(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A snapshot now."""

        async def snapshot(served: Served) -> operator_pb2.TakeSnapshotResponse:
            arrival, size = await finished(served.host.snapshot())
            return operator_pb2.TakeSnapshotResponse(arrival=arrival, bytes=size)

        return await self._act(context, request.merge, snapshot)

    async def DropSubscription(self, request: Any, context: Context) -> Any:  # noqa: N802
        """A durable subscription is forgotten."""

        async def drop(served: Served) -> operator_pb2.DropSubscriptionResponse:
            dropped = log_pb2.SubscriptionDropped(subscription=request.subscription)
            await served.host.submit(log_pb2.Arrival(dropped=dropped))
            return operator_pb2.DropSubscriptionResponse()

        return await self._act(context, request.merge, drop)

    # -- how ----------------------------------------------------------------------------------

    async def _act(
        self, context: Context, merge: str, act: Callable[[Served], Awaitable[Any]]
    ) -> Any:
        async def permitted() -> Any:
            self._desk.permit(context, "operator", merge)
            return await act(self._desk.hub.get(merge))

        return await self._desk.answered(context, permitted())

    async def _list(self, context: Context) -> operator_pb2.ListMergesResponse:
        summaries: list[operator_pb2.MergeSummary] = []
        for name, served in self._desk.hub.merges.items():
            statistics = served.host.state.merge.statistics()
            summaries.append(
                operator_pb2.MergeSummary(
                    name=name,
                    restriction=statistics.restriction,
                    streams=len(statistics.streams),
                    stable=statistics.stable,
                    stalled=statistics.stalled,
                    fault=served.host.fault,
                )
            )
        summaries += [
            operator_pb2.MergeSummary(name=name, fault=fault, stable=BEGINNING)
            for name, fault in self._desk.hub.faults.items()
        ]
        # Whoever may see none still must be known: asking for one merge says so.
        self._desk.sees(context, "")
        seen = [each for each in summaries if self._desk.sees(context, each.name)]
        seen.sort(key=lambda each: each.name)
        return operator_pb2.ListMergesResponse(merges=seen)

    async def _describe(self, served: Served) -> operator_pb2.DescribeMergeResponse:
        return describe(served)


def describe(served: Served) -> operator_pb2.DescribeMergeResponse:
    """Everything about one merge."""
    host, state = served.host, served.host.state
    statistics = state.merge.statistics()
    at, size = host.snapshot_at
    response = operator_pb2.DescribeMergeResponse(
        name=host.name,
        options=state.options,
        schema=rows.schema_bytes(state.merge.schema),
        generation=state.generation,
        output=operator_pb2.OutputStatistics(
            inserts=statistics.inserts,
            adjusts=statistics.adjusts,
            stables=statistics.stables,
            stable=statistics.stable,
            live=statistics.live,
            index_bytes=statistics.index_bytes,
            payload_bytes=statistics.payload_bytes,
            stalled=statistics.stalled,
            first_sequence=host.output.first,
            next_sequence=host.output.next,
        ),
        log=operator_pb2.LogStatistics(
            durability=host.durability,
            arrivals=state.arrivals,
            arrivals_bytes=host.arrivals_bytes,
            output_bytes=host.output.nbytes,
            snapshot_arrival=at,
            snapshot_bytes=size,
        ),
        on_trial=sorted(state.on_trial),
    )
    for stream in statistics.streams:
        response.streams.append(_described(served, stream))
    for name, sequence in sorted(state.subscriptions.items()):
        response.subscriptions.append(
            operator_pb2.SubscriptionStatistics(
                name=name,
                connected=served.sessions.readers.get(name, 0) > 0,
                acknowledged=state.position(sequence),
                behind=max(0, host.output.next - sequence),
            )
        )
    return response


def _described(served: Served, stream: Any) -> operator_pb2.StreamStatistics:
    record = served.host.state.streams[stream.name]
    traffic = served.sessions.traffic.get(stream.name, Traffic())
    described = operator_pb2.StreamStatistics(
        name=stream.name,
        connected=served.sessions.holder(stream.name) is not None,
        lineage=record.lineage,
        incarnation=record.incarnation,
        from_time=stream.since,
        feedback_sent=traffic.feedback_sent,
        held_back=traffic.held_back,
        staged_bytes=served.sessions.staged_bytes(stream.name),
        counters=traffic.counters,
        **{name: getattr(stream, name) for name in _COUNTS},
    )
    if stream.diverged is not None:
        described.diverged_start, described.diverged_end = stream.diverged
    if stream.lag is not None:
        described.lag = stream.lag
    if record.last_epoch is not None:
        described.last_epoch = record.last_epoch
    return described
