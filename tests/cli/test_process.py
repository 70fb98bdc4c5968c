"""The command line as a real process: pipes, signals and terminals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from pathlib import Path

import pytest

from lmerge.cli import terminal
from lmerge.cli.terminal import Terminal
from tests.cli.running import process, run

WAIT_SECONDS = 90  # the first run on a machine compiles


def read_line(running: subprocess.Popen[bytes]) -> bytes:
    """The next line of output, waiting for it only so long."""
    assert running.stdout is not None
    ready, _, _ = select.select([running.stdout], [], [], WAIT_SECONDS)
    assert ready, "no output in time"
    return running.stdout.readline()


def test_a_live_pipe_gets_its_answer_before_the_input_ends() -> None:
    with process(["merge", "-"], bufsize=0) as running:
        assert running.stdin is not None
        try:
            for vs in (1, 2, 3):
                text = f'{{"in":"a","op":"insert","vs":{vs},"ve":9,"payload":{vs}}}\n'
                running.stdin.write(text.encode())
                assert read_line(running) == text.replace('"in":"a",', "").encode()
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=WAIT_SECONDS)
        finally:
            running.kill()
    assert (running.returncode, err) == (130, b"")


@pytest.mark.parametrize("command", ["gen", "tdb"])
def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path, command: str) -> None:
    # Both write far more than a pipe holds: gen in large pieces, tdb line by line.
    path = str(tmp_path / "in.jsonl")
    argv = ["gen", "--elements", "20000"] if command == "gen" else ["tdb", path]
    run("gen", "--elements", "5000", "-o", path)
    with process(argv, stdin=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        read_line(running)
        running.stdout.close()
        assert running.wait(WAIT_SECONDS) == 141
        assert running.stderr.read() == b""


def test_closed_streams_are_no_reason_for_a_traceback() -> None:
    for closed, command, status in ((0, "merge", 2), (1, "tdb", 2), (2, "tdb", 2)):
        argv = [command, "-"] if closed < 2 else [command, "/none"]
        with process(
            argv, stdin=subprocess.DEVNULL, preexec_fn=lambda fd=closed: os.close(fd)
        ) as running:
            out, err = running.communicate(timeout=WAIT_SECONDS)
        assert (running.returncode, out) == (status, b"")
        assert b"Traceback" not in err


def screen_of(argv: list[str]) -> tuple[int, str]:
    """What a terminal as stderr shows of a command whose stdout goes elsewhere."""
    ours, theirs = pty.openpty()
    with process(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs) as it:
        os.close(theirs)
        shown = b""
        while True:
            ready, _, _ = select.select([ours], [], [], WAIT_SECONDS)
            assert ready, "the terminal shows nothing in time"
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end has closed
                break
            shown += chunk
        status = it.wait(WAIT_SECONDS)
    os.close(ours)
    return status, shown.decode()


def test_a_long_file_has_a_bar_on_a_terminal_and_a_short_one_has_none(tmp_path: Path) -> None:
    line = '{"in":"a","op":"insert","vs":%d,"ve":9999999,"payload":"' + "x" * 9000 + '"}\n'
    long = tmp_path / "long.jsonl"
    long.write_text("".join(line % i for i in range(1000)))
    status, shown = screen_of(["tdb", str(long)])
    assert status == 0
    assert "long.jsonl" in shown
    assert "MB" in shown
    short = tmp_path / "short.jsonl"
    short.write_text(line % 1)
    assert screen_of(["tdb", str(short)]) == (0, "")


def test_a_long_wait_for_the_compiler_is_explained_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "_is_terminal", lambda _: True)
    said: list[str] = []
    with Terminal() as it:
        monkeypatch.setattr(it, "say", said.append)
        for _ in range(5):
            with it.patience():
                # Bounded: the timer is due at once, and says so from its own thread.
                for _ in range(100_000):
                    if said:
                        break
                    os.sched_yield()
    assert len(said) == 1
    assert "compiling" in said[0]
    assert capfd.readouterr().err == ""
