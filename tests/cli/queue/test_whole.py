"""``toril queue …`` on a whole queue, by scripts and by people who are asked first."""

from __future__ import annotations

import re
import signal

import pytest

from tests.cli.queue.jobs import HOUR, fail, fill, put_everywhere, schedule, take
from tests.cli.shell import Shell, on_terminal, widest
from toril import Connection, connect
from toril.cli.queue import whole
from toril.cli.queue.target import Target
from toril.queue import Queue
from toril.queue.store import wall_clock
from toril.testing import Cluster, Server

# ---------------------------------------------------------------------------- the whole queue


async def test_pause_and_resume(shell: Shell, redis: Connection, queue: Queue) -> None:
    await fill(queue, 2)
    assert shell.ok("pause", "{shop}") == "{shop} is paused.\n"
    assert await queue.is_paused()
    assert shell.ok("pause", "{shop}") == "{shop} was paused already.\n"
    assert shell.json("resume", "{shop}") == {"queue": "{shop}", "paused": False, "changed": True}
    assert shell.ok("resume", "{shop}") == "{shop} was not paused.\n"
    assert (await queue.counts("waiting"))["waiting"] == 2
    await redis.command("HSET", queue.keys.meta, "version", "bullmq:6.2.0")
    assert "it belongs to bullmq:6.2.0" in shell.error("pause", "{shop}")
    assert not await queue.is_paused()


async def test_drain(shell: Shell, queue: Queue) -> None:
    await fill(queue, 3)
    await fill(queue, 2, priority=1)
    await fill(queue, 2, delay=HOUR)
    await schedule(queue, "nightly", wall_clock() + HOUR)
    assert "drain asks first" in shell.error("drain", "{shop}")
    assert (await queue.counts("waiting"))["waiting"] == 4
    done = shell.run("drain", "{shop}", "--yes")
    assert done.stdout == "5 jobs removed.\n"
    assert "1 job left: the next runs of schedulers" in done.stderr
    assert shell.json("drain", "{shop}", "--delayed", "--yes") == {"queue": "{shop}", "removed": 2, "left": 1}
    await queue.drain()
    assert (await queue.counts())["waiting"] == 1


async def test_clean_removes_only_what_is_old(shell: Shell, server: Server | Cluster) -> None:
    async with connect(server.url) as redis:
        then = wall_clock() - 2 * HOUR
        old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
        for queue, count in ((old, 12), (new, 4)):
            await fill(queue, count)
            await fail(queue, *await take(queue, count))
        assert "clean asks first" in shell.error("clean", "{shop}", "--state", "failed", "--older-than", "1h")
        question = "Remove 5 jobs of {shop} that failed more than 60 min ago, for good? [y/N]: "
        asked = ("clean", "{shop}", "--state", "failed", "--older-than", "1h", "--limit", "5")
        assert on_terminal(shell, *asked, say=[(question, "no\n")])[0] == 1
        clean = ("clean", "{shop}", "--state", "failed", "--yes", "--older-than")
        assert shell.ok(*clean, "3h") == "0 jobs removed.\n"
        assert shell.ok(*clean, "1h", "--limit", "5") == "5 jobs removed.\n"
        assert shell.json(*clean, "1h")["removed"] == 7
        assert (await new.counts("failed"))["failed"] == 4
        assert shell.ok(*clean, "0s") == "4 jobs removed.\n"
        assert shell.ok(*clean, "0s") == "0 jobs removed.\n"


async def test_clean_looks_behind_jobs_that_stay(shell: Shell, server: Server | Cluster) -> None:
    """Delayed jobs stand in the order they are due: old ones may be behind young ones."""
    async with connect(server.url) as redis:
        then = wall_clock() - 2 * HOUR
        old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
        await fill(new, 6, delay=HOUR)
        await fill(old, 4, delay=9 * HOUR)
        clean = ("clean", "{shop}", "--yes", "--older-than", "1h")
        assert shell.ok(*clean, "--state", "delayed", "--limit", "3") == "3 jobs removed.\n"
        assert shell.json(*clean, "--state", "delayed") == {
            "queue": "{shop}",
            "removed": 1,
            "stopped": False,
            "looked_at_all": True,
        }
        assert (await new.counts("delayed"))["delayed"] == 6
        await fill(old, 3)
        await new.pause()
        assert shell.ok(*clean, "--state", "waiting") == "3 jobs removed.\n", "a paused queue's jobs wait too"
        scheduled = await schedule(old, "nightly", wall_clock() + HOUR)
        await fill(old, 2)
        assert shell.ok(*clean, "--state", "waiting") == "2 jobs removed.\n"
        assert await new.state(scheduled) == "waiting"


async def test_clean_says_when_it_did_not_look_at_all(
    redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walking over all the young ones again and again would hold the server up."""
    monkeypatch.setattr(whole, "BATCH", 2)
    monkeypatch.setattr(whole, "WINDOW", 6)
    then = wall_clock() - 2 * HOUR
    old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
    await fill(new, 5, delay=HOUR)
    await fill(old, 3, delay=9 * HOUR)
    await fill(new, 7, delay=9 * HOUR)
    await fill(old, 1, delay=20 * HOUR)
    cleaner = whole._Cleaner(Target(new, json=False), "delayed", wall_clock() - HOUR, None)
    gone, more = 0, True
    while more:
        count, more = await cleaner.step()
        gone += count
    assert gone == 3
    assert cleaner.gave_up
    assert (await new.counts("delayed"))["delayed"] == 13


async def test_obliterate(shell: Shell, redis: Connection, queue: Queue) -> None:
    await put_everywhere(queue)
    assert "obliterate asks first" in shell.error("obliterate", "{shop}", "--force")
    refused = shell.error("obliterate", "{shop}", "--yes")
    assert refused.startswith("queue '{shop}' has 1 job that workers have")
    assert not await queue.is_paused(), "a refused command leaves the queue as it was"
    assert sum((await queue.counts()).values()) == 9
    assert shell.ok("obliterate", "{shop}", "--yes", "--force") == "{shop} is gone, with 9 jobs.\n"
    assert {key async for key in redis.scan("bull:{shop}:*")} <= {b"bull:{shop}:marker"}
    assert "there is no queue '{shop}'" in shell.error("show", "{shop}")


# ---------------------------------------------------------------------------- on a terminal


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_a_terminal_is_asked_first(shell: Shell, queue: Queue) -> None:
    await fill(queue, 3)
    question = "Remove 3 jobs of {shop} that wait, for good? [y/N]: "
    for answer in ("n\n", "\n", "\x04", signal.SIGINT):
        code, screen = on_terminal(shell, "drain", "{shop}", say=[(question, answer)])
        assert code == 1
        assert "nothing was changed" in screen
        assert (await queue.counts("waiting"))["waiting"] == 3
    code, screen = on_terminal(shell, "drain", "{shop}", say=[(question, "y\n")])
    assert code == 0
    assert "3 jobs removed." in screen
    assert (await queue.counts("waiting"))["waiting"] == 0


async def test_ctrl_c_stops_between_steps_and_says_how_far_it_was(
    shell: Shell, redis: Connection, queue: Queue
) -> None:
    await queue.announce()
    total = 20_000
    for start in range(0, total, 1000):
        pairs = [part for n in range(start, start + 1000) for part in (n + 1, f"j{n}")]
        await redis.command("ZADD", queue.keys.failed, *pairs)
    args = ("retry", "{shop}", "--all", "--yes", "--batch", "1")
    code, screen = on_terminal(shell, *args, say=[("of 20,000", signal.SIGINT)])
    assert code == 130
    assert "Retrying" in screen
    told = re.search(r"Stopped: ([\d,]+) jobs? retried, ([\d,]+) failed are left\.", screen)
    assert told, screen
    counts = await queue.counts("waiting", "failed")
    assert counts["waiting"] == int(told[1].replace(",", ""))
    assert counts["failed"] == int(told[2].replace(",", ""))
    assert counts["waiting"] + counts["failed"] == total
    assert counts["failed"] > 0


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_tables_fit_the_terminal(shell: Shell, queue: Queue) -> None:
    await put_everywhere(queue)
    for columns in (60, 100):
        for args in (("ls",), ("show", "{shop}"), ("jobs", "{shop}"), ("job", "{shop}", "1")):
            code, screen = on_terminal(shell, *args, columns=columns)
            assert code == 0, screen
            assert widest(re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r\n", "\n"))) <= columns
