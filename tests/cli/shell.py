"""``toril …`` as a script runs it, and as a person at a terminal does."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.command import toril
from tests.test_cli import run


@dataclass
class Shell:
    """Runs ``toril queue …`` on one server, or another group of commands."""

    url: str
    group: str = "queue"

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run(self.group, *args, "--url", self.url, **env)

    def ok(self, *args: str, **env: str) -> str:
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def piped(self, text: str, *args: str) -> str:
        done = toril(self.group, *args, "--url", self.url, said=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *args: str) -> str:
        """The one line of a refusal."""
        done = self.run(*args)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert not done.stdout, done.stdout
        return done.stderr.removeprefix("error: ").strip()


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(
    shell: Shell, *args: str, say: Sequence[tuple[str, str | signal.Signals]] = (), columns: int = 100
) -> tuple[int, str]:
    """Run it in a terminal: when a text appears, type something or send a signal. Exit code and screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "toril.cli", shell.group, *args, "--url", shell.url]
    # Where the tests themselves were started to ignore Ctrl-C (by nohup, say), a terminal's program is not.
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, preexec_fn=heed_ctrl_c
    )
    os.close(theirs)
    screen, waiting = "", list(say)
    try:
        while True:
            try:
                seen = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            if not seen:
                break
            screen += seen.decode(errors="replace")
            if waiting and waiting[0][0] in screen:
                _, what = waiting.pop(0)
                if isinstance(what, signal.Signals):
                    process.send_signal(what)
                else:
                    os.write(ours, what.encode())
    finally:
        os.close(ours)
        code = process.wait(timeout=30)
    assert not waiting, f"{waiting[0][0]!r} did not appear in {screen!r}"
    return code, screen


def widest(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)
