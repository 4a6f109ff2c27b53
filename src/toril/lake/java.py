"""The Java that Spark runs on: which one it takes, and whether it can be used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from toril.lake.errors import SparkMissing

OLDEST = 17
HOW = f"apt-get install openjdk-{OLDEST}-jre-headless, or let JAVA_HOME name another"

MODULE = "jdk.incubator.vector"
"""A part of Java that Spark is started with. Trimmed runtimes lack it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found."""

    binary: str
    version: str
    """As it says itself; empty where it does not."""
    whole: bool
    """Whether it has all that Spark starts it with."""

    @property
    def major(self) -> int:
        """17 of ``17.0.15``, 8 of ``1.8.0_392``; 0 where it is not known."""
        parts = [int(part) for part in re.findall(r"\d+", self.version)[:2]]
        return 0 if not parts else parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]


def find() -> Java | None:
    """The one that Spark takes: of ``JAVA_HOME``, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    binary = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return _ask(binary) if binary and Path(binary).is_file() else None


def require() -> Java:
    """The one that Spark takes; :class:`SparkMissing` where it would not start with it."""
    found = find()
    if found is None:
        home = os.environ.get("JAVA_HOME")
        where = (
            f"JAVA_HOME is {home!r}, and there is no bin/java in it" if home else "there is none on the path"
        )
        raise SparkMissing(f"Spark needs Java {OLDEST}, and {where}: {HOW}")
    if found.major < OLDEST:
        raise SparkMissing(f"Spark needs Java {OLDEST}, and {found.binary} is {found.version!r}: {HOW}")
    if not found.whole:
        raise SparkMissing(f"{found.binary} lacks the module {MODULE}, which Spark is started with: {HOW}")
    return found


def _ask(binary: str) -> Java:
    def said(*args: str) -> str:
        try:
            done = subprocess.run([binary, *args], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stderr + done.stdout

    quoted = said("-version").split('"')
    return Java(binary, quoted[1] if len(quoted) > 1 else "", f"{MODULE}@" in said("--list-modules"))
