"""Runs a command that must not outlive the process that asked for it.

``python guardian.py COMMAND...``, in a process group of its own, with a pipe as standard input. The
command ends when the pipe does, or when the guardian's parent is another one: both mean that
whoever asked is gone, also when it was killed. Two signs, because a pipe's end may be inherited by
forks of the asker, and the parent is only looked at now and then.

A signal to the group reaches both. The guardian leaves SIGTERM to the command, and ends with it,
with its status. Of the standard library it imports little: it starts in some 20 ms.
"""

import os
import select
import signal
import subprocess  # to run a command is its work
import sys

LOOK_SECONDS = 1.0


def main(command: list[str]) -> int:
    """The command's exit status; 128 and its signal when it was killed."""
    asker = os.getppid()
    os.set_inheritable(0, False)
    # A session without a terminal still gets these when somebody signals the group.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return 127
    watched = [0, woken]
    while True:
        status = child.poll()
        if status is not None:
            return 128 - status if status < 0 else status
        ready, _, _ = select.select(watched, [], [], LOOK_SECONDS)
        if woken in ready:
            os.read(woken, 4096)
        ended = 0 in ready and not os.read(0, 4096)
        if ended or os.getppid() != asker:
            os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
