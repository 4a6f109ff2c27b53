"""``toril queue …`` to change jobs: add, retry, promote, remove, priority, delay."""

from __future__ import annotations

import json

from tests.cli.queue.jobs import HOUR, complete, fail, fill, schedule, take
from tests.cli.shell import Shell
from toril.queue import Queue
from toril.queue.store import wall_clock

# ---------------------------------------------------------------------------- add


async def test_add_prints_the_id_and_keeps_the_options(shell: Shell, queue: Queue) -> None:
    done = shell.run("add", "{shop}", "order", '{"sku": "ä", "n": 1.5}', "--attempts", "3", "--backoff", "2s")
    assert done.stdout == "1\n"
    assert "queue '{shop}' is new here" in done.stderr
    job = await queue.job("1")
    assert job is not None
    assert (job.name, job.data) == ("order", {"sku": "ä", "n": 1.5})
    assert job.opts == {"attempts": 3, "backoff": {"type": "fixed", "delay": 2000}}
    assert shell.ok("add", "{shop}", "order", "--delay", "15m", "--priority", "4") == "2\n"
    assert shell.ok("add", "{shop}", "order", "[]", "--delay", "1500") == "3\n"
    second, third = await queue.job("2"), await queue.job("3")
    assert second is not None
    assert third is not None
    assert (second.data, second.delay, second.priority) == ({}, 900_000, 4)
    assert (third.data, third.delay) == ([], 1500)
    assert shell.json("add", "{shop}", "order", "--id", "mine", "--lifo") == {
        "queue": "{shop}",
        "id": "mine",
        "added": True,
    }
    again = shell.run("add", "{shop}", "order", "--id", "mine")
    assert again.stdout == "mine\n"
    assert "job 'mine' is already there (waiting): nothing was added" in again.stderr
    assert shell.json("add", "{shop}", "order", "--deduplication", "d")["added"]
    assert not shell.json("add", "{shop}", "order", "--deduplication", "d")["added"]
    assert await queue.counts("waiting") == {"waiting": 3, "paused": 0}


async def test_add_reads_data_from_a_pipe(shell: Shell, queue: Queue) -> None:
    job_id = shell.piped('{"from": "pipe"}', "add", "{shop}", "order", "-")
    job = await queue.job(job_id.strip())
    assert job is not None
    assert job.data == {"from": "pipe"}


async def test_add_refuses_what_cannot_be(shell: Shell, queue: Queue) -> None:
    await queue.announce()
    for args, rule in (
        (('{"a": 1,}',), "not JSON at column 9"),
        (('{"a":\n tru}',), "not JSON at line 2, column 2"),
        (("--id", "5"), "it cannot be a whole number"),
        (("--durability", "hope"), "hope"),
    ):
        assert rule in shell.error("add", "{shop}", "order", *args)
    assert sum((await queue.counts()).values()) == 0


# ---------------------------------------------------------------------------- retry and promote


async def test_retry_by_id_tells_who_refused(shell: Shell, queue: Queue) -> None:
    await fill(queue, 4)
    failed = await take(queue, 2)
    await fail(queue, *failed)
    await complete(queue, *(done := await take(queue)))
    assert shell.ok("retry", "{shop}", failed[0].id) == f"Job {failed[0].id} retried.\n"
    done_run = shell.run("retry", "{shop}", failed[1].id, done[0].id, "99", "--json")
    assert done_run.returncode == 1
    assert json.loads(done_run.stdout) == {
        "queue": "{shop}",
        "retried": [failed[1].id],
        "refused": {
            done[0].id: f"job '{done[0].id}' is completed, not failed",
            "99": "there is no job '99' in queue '{shop}'",
        },
    }
    assert done_run.stderr.count("error: ") == 2
    assert "retried" in shell.ok("retry", "{shop}", done[0].id, "--state", "completed")
    assert (await queue.counts("waiting"))["waiting"] == 4


async def test_retry_all(shell: Shell, queue: Queue) -> None:
    await fill(queue, 25)
    await fail(queue, *await take(queue, 20))
    await complete(queue, *await take(queue, 5))
    refused = shell.error("retry", "{shop}", "--all")
    assert refused == (
        "retry --all asks first, and there is no terminal to ask on: add --yes (nothing was changed)"
    )
    assert (await queue.counts("failed"))["failed"] == 20
    assert shell.ok("retry", "{shop}", "--all", "--yes", "--batch", "7") == "20 jobs retried.\n"
    assert shell.json("retry", "{shop}", "--all", "--state", "completed", "--yes") == {
        "queue": "{shop}",
        "retried": 5,
        "left": 0,
        "stopped": False,
    }
    assert (await queue.counts("waiting"))["waiting"] == 25
    assert shell.ok("retry", "{shop}", "--all", "--yes") == "No failed jobs.\n"
    for args in ((), ("1", "--all")):
        assert shell.error("retry", "{shop}", *args).startswith("retry takes the ids of jobs, or --all")


async def test_promote(shell: Shell, queue: Queue) -> None:
    ids = await fill(queue, 5, delay=HOUR)
    assert shell.ok("promote", "{shop}", *ids[:2]) == "2 jobs promoted.\n"
    assert shell.error("promote", "{shop}", ids[0]) == f"job {ids[0]!r} is waiting, not delayed"
    assert shell.ok("promote", "{shop}", "--all") == "3 jobs promoted.\n"
    assert shell.json("promote", "{shop}", "--all")["promoted"] == 0
    assert (await queue.counts("waiting"))["waiting"] == 5


# ---------------------------------------------------------------------------- one job


async def test_remove(shell: Shell, queue: Queue) -> None:
    ids = await fill(queue, 4)
    (taken,) = await take(queue)
    scheduled = await schedule(queue, "nightly", wall_clock() + HOUR)
    assert "remove asks first" in shell.error("remove", "{shop}", ids[1])
    assert await queue.job(ids[1]) is not None
    assert shell.ok("remove", "{shop}", ids[1], "--yes") == f"Job {ids[1]} removed.\n"
    done = shell.run("remove", "{shop}", ids[2], taken.id, scheduled, "-y", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["removed"] == [ids[2]]
    assert said["refused"][taken.id] == f"job {taken.id!r} (or a child of it) is being worked on, and stays"
    assert "next run of a scheduler" in said["refused"][scheduled]
    assert await queue.job(ids[2]) is None


async def test_priority_and_delay(shell: Shell, queue: Queue) -> None:
    (waiting,) = await fill(queue, 1)
    (delayed,) = await fill(queue, 1, delay=HOUR)
    assert shell.ok("priority", "{shop}", waiting, "5") == f"Job {waiting} changed.\n"
    assert await queue.counts_per_priority(5) == {5: 1}
    assert shell.json("delay", "{shop}", delayed, "2h")["changed"] == [delayed]
    job = await queue.job(delayed)
    assert job is not None
    assert job.delay == 2 * HOUR
    assert shell.error("delay", "{shop}", waiting, "5") == f"job {waiting!r} is prioritized, not delayed"
    assert "there is no job '99'" in shell.error("priority", "{shop}", "99", "5")
