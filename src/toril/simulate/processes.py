"""``simulate``: a run, by as many processes as are wanted."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from toril.errors import InvalidValue, TorilError
from toril.simulate.delivery import Stop
from toril.simulate.report import Report
from toril.simulate.run import Run
from toril.simulate.sending import Simulator, Told

POLL = 0.2


class SenderDied(TorilError):
    """A process of the simulator ended without a report."""


def simulate(run: Run, *, processes: int = 1, told: Told | None = None, stop: Stop | None = None) -> Report:
    """Send it all, or until ``stop`` is set; what became of it. ``told`` hears how far it is.

    The traces are dealt out to the processes: the same for the same number of them, and with ``traces`` for
    any number.
    """
    if processes < 1:
        raise InvalidValue("processes", processes, "at least 1")
    if processes == 1:
        return Simulator(run, told=told, stop=stop).send()
    return _many(run, processes, told, stop or threading.Event())


def _many(run: Run, processes: int, told: Told | None, stop: Stop) -> Report:
    spawn = multiprocessing.get_context("spawn")
    halt = spawn.Event()
    heard: dict[Connection[Any, Any], Report] = {}
    children = []
    for place in range(processes):
        ours, theirs = spawn.Pipe(duplex=False)
        share = replace(run, share=(place, processes), keys=dict(run.keys))
        child = spawn.Process(target=_send, args=(share, theirs, halt), daemon=True)
        child.start()
        theirs.close()
        children.append(child)
        heard[ours] = Report()
    talking, ended = set(heard), 0
    while talking:
        for pipe in wait(list(talking), POLL):
            assert pipe in heard
            try:
                heard[pipe], is_last = pipe.recv()
            except EOFError:
                is_last = False
                talking.discard(pipe)
            ended += is_last
        if stop.is_set():
            halt.set()
        if told is not None:
            told(_merged(heard.values()))
    for child in children:
        child.join()
    if ended < processes:
        raise SenderDied(f"{processes - ended} of {processes} processes ended without a report")
    return _merged(heard.values())


def _merged(reports: Any) -> Report:
    whole = Report()
    for report in reports:
        whole.merge(report)
    return whole


def _send(run: Run, pipe: Connection[Any, Any], halt: Stop) -> None:
    """In a process of its own: send a share of the run, and tell how far it is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; who started us says what to do
    simulator = Simulator(run, told=lambda report: pipe.send((report, False)), stop=halt)
    pipe.send((simulator.send(), True))
