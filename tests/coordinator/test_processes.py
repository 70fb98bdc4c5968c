"""Processes that are killed and paused: what ZooKeeper and the others make of it."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.deployment import Member
from coordinator.election import Candidate
from coordinator.membership import Coordination, Registration
from coordinator.states import Candidacy, Registered
from coordinator.zookeeper import Ensemble
from tests.coordinator.waiting import WAIT_SECONDS, until

_DEPLOYMENTS = itertools.count(1)
LEADER = """
import sys, threading
from coordinator.election import Candidate
from coordinator.membership import Coordination
with Coordination(sys.argv[1], sys.argv[2], session_seconds=1.0) as coordination:
    Candidate(coordination, "process", lambda term: print(term and term.number, flush=True))
    threading.Event().wait()
"""
MEMBER = """
import sys, threading
from coordinator.deployment import Member
from coordinator.membership import Coordination, Registration
with Coordination(sys.argv[1], sys.argv[2], session_seconds=1.0) as coordination:
    Registration(coordination, Member("replica", "a", 0, merge="m"),
                 lambda state: print(state.name, flush=True))
    threading.Event().wait()
"""


@contextmanager
def process(program: str, hosts: str, name: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", program, hosts, name], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def said(running: subprocess.Popen[str], wanted: str) -> None:
    """Reads until the process says so."""
    assert running.stdout is not None
    for line in running.stdout:
        if line.strip() == wanted:
            return
    raise AssertionError(f"it ended, and did not say {wanted!r}")


def test_killing_the_leaders_process_changes_the_leader(zookeeper: Ensemble) -> None:
    name = f"processes-{next(_DEPLOYMENTS)}"
    with process(LEADER, zookeeper.hosts, name) as leader:
        said(leader, "1")
        with Coordination(zookeeper.hosts, name) as coordination:
            candidate = Candidate(coordination, "here")
            until(lambda: candidate.state is Candidacy.STANDING)
            assert candidate.leader() == "process"
            leader.kill()
            assert candidate.wait(WAIT_SECONDS).number == 2
            assert candidate.leader() == "here"


def test_a_process_paused_beyond_its_session_is_a_member_again_when_nobody_took_over(
    zookeeper: Ensemble,
) -> None:
    name = f"processes-{next(_DEPLOYMENTS)}"
    with (
        process(MEMBER, zookeeper.hosts, name) as paused,
        Coordination(zookeeper.hosts, name) as coordination,
    ):
        said(paused, "MEMBER")
        deployment = coordination.connect(WAIT_SECONDS)
        before = deployment.members("replica")
        paused.send_signal(signal.SIGSTOP)
        until(lambda: not deployment.members("replica"))
        paused.send_signal(signal.SIGCONT)
        said(paused, "AWAY")
        said(paused, "MEMBER")
        assert deployment.members("replica") == before


def test_a_process_paused_while_another_took_over_is_fenced(zookeeper: Ensemble) -> None:
    name = f"processes-{next(_DEPLOYMENTS)}"
    with (
        process(MEMBER, zookeeper.hosts, name) as paused,
        Coordination(zookeeper.hosts, name) as coordination,
    ):
        said(paused, "MEMBER")
        paused.send_signal(signal.SIGSTOP)
        registration = Registration(coordination, Member("replica", "a", 0, merge="m"))
        member = registration.wait(WAIT_SECONDS)
        paused.send_signal(signal.SIGCONT)
        said(paused, "FENCED")
        assert registration.state is Registered.MEMBER
        assert coordination.deployment.members("replica") == {"m:a": member}
