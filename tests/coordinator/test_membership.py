"""Membership on a real ZooKeeper: registrations, fencing, views, values and rights."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient

from coordinator.deployment import ConflictError, Credentials, Member, key_of
from coordinator.election import Candidate
from coordinator.membership import Coordination, Registration, View
from coordinator.states import Candidacy, Registered
from coordinator.zookeeper import Ensemble
from lmerge.errors import (
    ConfigurationError,
    FencedError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from tests.coordinator.waiting import WAIT_SECONDS, until

_DEPLOYMENTS = itertools.count(1)
_SECRET = Credentials("lmerge", "a secret")

Join = Callable[..., Coordination]


@pytest.fixture
def name() -> str:
    """A deployment of the test's own."""
    return f"d{next(_DEPLOYMENTS)}-{threading.get_native_id()}"


@pytest.fixture
def join(zookeeper: Ensemble, name: str) -> Iterator[Join]:
    """Makes sessions, which end with the test."""
    with ExitStack() as stack:

        def begin(hosts: str = zookeeper.hosts, **options: Any) -> Coordination:
            options = {"session_seconds": 4.0} | options
            return stack.enter_context(Coordination(hosts, name, **options))

        yield begin


def replica(stream: str = "a", incarnation: int = 0, **fields: Any) -> Member:
    return Member("replica", stream, incarnation, merge="m", **fields)


def expire(coordination: Coordination) -> None:
    """Has ZooKeeper end the session, as it does when it hears nothing for its timeout."""
    session, password = coordination.client.client_id
    other = KazooClient(coordination.hosts, client_id=(session, password), timeout=10.0)
    other.start(timeout=WAIT_SECONDS)
    other.stop()
    other.close()


class Seen:
    """What a view has told."""

    def __init__(self, coordination: Coordination) -> None:
        self.told: queue.Queue[tuple[bool, dict[str, Member], dict[str, int]]] = queue.Queue()
        self.view = View(coordination, "replica", self._take)

    def _take(
        self, current: bool, members: Mapping[str, Member], newest: Mapping[str, int]
    ) -> None:
        self.told.put((current, dict(members), dict(newest)))

    def until(self, wanted: Callable[[bool, dict[str, Member]], bool]) -> dict[str, Member]:
        """The members, once they are as wanted."""
        while True:
            current, members, _ = self.told.get(timeout=WAIT_SECONDS)
            if wanted(current, members):
                return members


# -- registrations --------------------------------------------------------------------------------


def test_a_member_is_seen_with_all_it_says_and_goes_with_its_session(join: Join) -> None:
    watcher, other = join(), join()
    seen = Seen(watcher)
    said = replica(plan="p:build", address="127.0.0.1:1", lineage="l", instance="i")
    member = Registration(other, said).wait(WAIT_SECONDS)
    found = seen.until(lambda current, members: "m:a" in members)["m:a"]
    assert found == member
    assert (found.plan, found.lineage, found.instance) == ("p:build", "l", "i")
    assert found.incarnation > 0
    other.close()
    seen.until(lambda current, members: not members)
    assert seen.view.newest == {"m:a": member.incarnation}


def test_a_registration_comes_back_after_its_session_has_expired(join: Join) -> None:
    coordination = join()
    states: queue.Queue[Registered] = queue.Queue()
    registration = Registration(coordination, replica(), states.put)
    member, session = registration.wait(WAIT_SECONDS), coordination.session
    while not states.empty():
        states.get()
    expire(coordination)
    while states.get(timeout=WAIT_SECONDS) is not Registered.MEMBER:
        pass
    assert coordination.session != session
    assert coordination.deployment.members("replica") == {"m:a": member}


def test_a_newer_incarnation_takes_over_at_once_and_the_older_is_fenced(join: Join) -> None:
    zombie, successor = join(), join()
    first = Registration(zombie, replica())
    old = first.wait(WAIT_SECONDS)
    new = Registration(successor, replica()).wait(WAIT_SECONDS)
    assert new.incarnation > old.incarnation
    until(lambda: first.state is Registered.FENCED)
    with pytest.raises(FencedError, match="a newer incarnation"):
        first.wait(WAIT_SECONDS)
    assert successor.deployment.members("replica") == {"m:a": new}
    # Not even a new session makes it a member again.
    expire(zombie)
    until(lambda: zombie.client.connected and zombie.session)
    assert successor.deployment.members("replica") == {"m:a": new}


def test_an_incarnation_is_greater_than_all_before_it_and_has_one_taker(join: Join) -> None:
    deployment = join().connect(WAIT_SECONDS)
    taken: list[int] = []

    def take() -> None:
        taken.extend(deployment.take_incarnation("replica", "m:x") for _ in range(20))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 80
    assert deployment.incarnations("replica")["m:x"] == max(taken)
    deployment.forget("replica", "m:x")
    assert "m:x" not in deployment.incarnations("replica")


def test_what_a_member_says_can_change_and_so_can_its_incarnation(join: Join) -> None:
    coordination = join()
    registration = Registration(coordination, replica())
    member = registration.wait(WAIT_SECONDS)
    registration.update(plan="other")
    until(lambda: coordination.deployment.members("replica")["m:a"].plan == "other")
    registration.renew()
    assert registration.wait(WAIT_SECONDS).incarnation > member.incarnation
    registration.close()
    until(lambda: not coordination.deployment.members("replica"))


def test_without_zookeeper_a_registration_waits_and_says_so(name: str) -> None:
    with Coordination("127.0.0.1:1", name) as coordination:
        registration = Registration(coordination, replica())
        with pytest.raises(UnavailableError, match="is there a ZooKeeper at"):
            registration.wait(0.1)
        with pytest.raises(UnavailableError, match="does not answer"):
            coordination.connect(0.1)


@pytest.mark.parametrize("wrong", ["a/b", "", "..", "a:b"])
def test_a_name_that_would_lead_elsewhere_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name of a stream"):
        key_of("replica", wrong, "m")
    with pytest.raises(ConfigurationError, match="is no name of a deployment"):
        Coordination("127.0.0.1:1", wrong)


# -- ZooKeeper goes and comes ---------------------------------------------------------------------


def test_when_zookeeper_is_away_what_was_known_stays_known(
    own_zookeeper: Ensemble, join: Join
) -> None:
    watcher, other = join(own_zookeeper.hosts), join(own_zookeeper.hosts)
    seen = Seen(watcher)
    registration = Registration(other, replica())
    member = registration.wait(WAIT_SECONDS)
    seen.until(lambda current, members: members == {"m:a": member})
    own_zookeeper.kill(0)
    assert seen.until(lambda current, members: not current) == {"m:a": member}
    until(lambda: registration.state is Registered.DOUBT)
    own_zookeeper.start(0)
    assert registration.wait(WAIT_SECONDS) == member
    seen.until(lambda current, members: current and members == {"m:a": member})


def test_members_survive_the_ensembles_leader(three: Ensemble, join: Join) -> None:
    coordination = join(three.hosts, session_seconds=10.0)
    registration = Registration(coordination, replica())
    member, session = registration.wait(WAIT_SECONDS), coordination.session
    leader = three.leader()
    assert leader is not None
    three.kill(leader)
    second = join(three.hosts)
    other = Registration(second, replica("b")).wait(WAIT_SECONDS)
    until(lambda: coordination.client.connected)
    assert registration.wait(WAIT_SECONDS) == member
    assert coordination.session == session
    assert second.deployment.members("replica") == {"m:a": member, "m:b": other}


def test_a_zookeeper_that_lost_its_data_gets_it_anew(
    own_zookeeper: Ensemble, join: Join, tmp_path: Any
) -> None:
    coordination = join(own_zookeeper.hosts)
    registration = Registration(coordination, replica())
    member = registration.wait(WAIT_SECONDS)
    port = own_zookeeper.nodes[0].port
    own_zookeeper.close()
    with Ensemble(tmp_path / "another", port=port):
        until(lambda: registration.state is Registered.AWAY)
        again = registration.wait(WAIT_SECONDS)
        assert again == member
        assert coordination.deployment.incarnations("replica") == {"m:a": member.incarnation}


# -- values, terms, rights ------------------------------------------------------------------------


def test_a_value_is_replaced_only_by_who_has_read_it(join: Join) -> None:
    deployment = join().connect(WAIT_SECONDS)
    assert deployment.read("spec") is None
    version = deployment.write("spec", {"n": 2}, None)
    with pytest.raises(ConflictError):
        deployment.write("spec", {"n": 9}, None)
    newer = deployment.write("spec", {"n": 3}, version)
    with pytest.raises(ConflictError):
        deployment.write("spec", {"n": 9}, version)
    found = deployment.read("spec")
    assert found is not None
    assert (found.value, found.version) == ({"n": 3}, newer)
    with pytest.raises(ConflictError):
        deployment.remove("spec", version)
    deployment.remove("spec", newer)
    assert deployment.read("spec") is None


def test_a_change_of_a_value_is_told_also_when_it_was_not_there(join: Join) -> None:
    deployment = join().connect(WAIT_SECONDS)
    told: queue.Queue[Any] = queue.Queue()
    assert deployment.read("cutover", told.put) is None
    version = deployment.write("cutover", {"stage": "start"}, None)
    told.get(timeout=WAIT_SECONDS)
    deployment.read("cutover", told.put)
    deployment.write("cutover", {"stage": "joined"}, version)
    told.get(timeout=WAIT_SECONDS)


def test_a_leader_is_followed_by_another_and_can_change_nothing_any_more(join: Join) -> None:
    one, two = join(), join()
    with pytest.raises(NotFoundError):
        one.connect(WAIT_SECONDS).term()
    first = Candidate(one, "one")
    old = first.wait(WAIT_SECONDS)
    second = Candidate(two, "two")
    until(lambda: second.state is Candidacy.STANDING)
    version = one.deployment.write("spec", {"n": 1}, None, old)
    expire(one)
    new = second.wait(WAIT_SECONDS)
    assert (new.number, new.leader) == (old.number + 1, "two")
    until(lambda: first.term is None)
    until(lambda: one.client.connected)
    with pytest.raises(ConflictError):
        one.deployment.write("spec", {"n": 2}, version, old)
    two.deployment.write("spec", {"n": 3}, version, new)
    assert two.deployment.term() == new


def test_a_leader_whose_session_ends_hears_of_it_and_stands_again(join: Join) -> None:
    coordination = join()
    terms: queue.Queue[Any] = queue.Queue()
    candidate = Candidate(coordination, "one", terms.put)
    first = candidate.wait(WAIT_SECONDS)
    assert terms.get(timeout=WAIT_SECONDS) == first
    expire(coordination)
    assert terms.get(timeout=WAIT_SECONDS) is None
    assert terms.get(timeout=WAIT_SECONDS).number == first.number + 1


def test_strangers_are_refused(join: Join) -> None:
    ours = join(credentials=_SECRET)
    registration = Registration(ours, replica())
    member = registration.wait(WAIT_SECONDS)
    ours.deployment.write("spec", {"n": 1}, None)
    nobody, somebody = join(), join(credentials=Credentials("lmerge", "a guess"))
    for stranger in (nobody, somebody):
        with pytest.raises(PermissionDeniedError):
            stranger.connect(WAIT_SECONDS)
        with pytest.raises(PermissionDeniedError):
            stranger.deployment.read("spec")
        with pytest.raises(PermissionDeniedError):
            stranger.deployment.members("replica")
        with pytest.raises(PermissionDeniedError):
            stranger.deployment.write("spec", {}, 0)
        with pytest.raises(PermissionDeniedError):
            stranger.deployment.take_incarnation("replica", "m:a")
        refused = Registration(stranger, replica())
        with pytest.raises(UnavailableError):
            refused.wait(0.2)
    assert join(credentials=_SECRET).connect(WAIT_SECONDS).members("replica") == {"m:a": member}


def test_an_open_deployment_is_refused_to_who_wants_it_guarded(join: Join) -> None:
    join().connect(WAIT_SECONDS)
    with pytest.raises(PermissionDeniedError, match="exists with other rights"):
        join(credentials=_SECRET).connect(WAIT_SECONDS)
