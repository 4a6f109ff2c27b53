"""Commands of Toril as processes, quickly.

A short command spends most of its time reading code. Here a process that has read it already forks for each
command: what runs is a process like any other, with arguments, an environment and an end of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def toril(
    *args: str, env: dict[str, str] | None = None, cwd: Path = ROOT, said: str = "", timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``toril …`` to its end, with ``said`` on its standard input."""
    environment = dict(os.environ if env is None else env)
    with tempfile.TemporaryDirectory(prefix="toril-command-") as name:
        folder = Path(name)
        (folder / "0").write_text(said)
        asked = {"args": args, "env": environment, "cwd": str(cwd), "folder": name}
        code = _Forker.current().ask(json.dumps(asked), timeout)
        shown, errors = ((folder / number).read_text() for number in "12")
    return subprocess.CompletedProcess(args, code, shown, errors)


class _Forker:
    """The process that forks."""

    _one: _Forker | None = None

    @classmethod
    def current(cls) -> _Forker:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.command"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._end)

    def ask(self, line: str, timeout: float) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not answered:
            self._end()
            raise TimeoutError(f"after {timeout:g} s not at its end: {line}")
        return int(self._process.stdout.readline())

    def _end(self) -> None:
        type(self)._one = None
        atexit.unregister(self._end)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _become_a_command() -> bool:
    """Fork for each line that comes in; true in a process that is to be the command, false at the end."""
    import click  # noqa: F401 - read once, here
    import rich.console
    import rich.progress
    import rich.table  # noqa: F401

    import toril.log
    import toril.queue
    import toril.runtime  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            asked = json.loads(line)
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            sys.path[:1] = [asked["cwd"], *filter(None, asked["env"].get("PYTHONPATH", "").split(os.pathsep))]
            for number in range(3):
                file = os.open(f"{asked['folder']}/{number}", os.O_RDWR | os.O_CREAT)
                os.dup2(file, number)
                os.close(file)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.argv = ["toril", *asked["args"]]
            return True
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return False


if __name__ == "__main__" and _become_a_command():
    runpy.run_module("toril.cli", run_name="__main__", alter_sys=True)
