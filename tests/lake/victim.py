"""A job of the lake that is there to be killed: ``python -m tests.lake.victim SETTINGS`` (JSON).

It runs the steps until SIGTERM, and says on its standard output what happens: ``ready``, ``wrong TEXT``,
``closed``. When its standard input ends, because the test is gone, it is gone too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from toril.lake.archive import EventsStep
from toril.lake.lake import Lake
from toril.lake.rollups import RollupsStep
from toril.lake.run import Failed, LeftAlone, News, Run
from toril.lake.sessions import session
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.summaries import SummariesStep


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    lake: str
    most: int = 500


def steps(settings: Settings) -> list[Step]:
    archive = EventsStep(settings.url, most=settings.most)
    return [archive, SpansStep(), SummariesStep(), RollupsStep()]


def say(what: str, about: object = "") -> None:
    print(what, " ".join(str(about).split()), flush=True)


def told(news: News) -> None:
    say("wrong" if isinstance(news, (Failed, LeftAlone)) else "news", news)


def leave_with_the_test() -> None:
    """End this process when the other end of its standard input is closed."""
    os.read(0, 1)  # not sys.stdin: a thread that holds it would break the interpreter's own end
    os._exit(1)


def serve(settings: Settings) -> int:
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    lake = Lake(session("local[2]", name="toril-victim", conf=conf), settings.lake)
    with Run(lake, steps(settings), told=told) as run:
        # Not before Spark has started: it takes signals for itself.
        signal.signal(signal.SIGTERM, lambda *_: run.stop())
        say("ready")
        while not run.wait(0.2):
            pass
    lake.spark.stop()
    say("closed")
    return 1 if run.problems else 0


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    sys.exit(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
