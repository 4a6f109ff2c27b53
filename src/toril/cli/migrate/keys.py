"""``toril migrate keys``: rename keys of any kind by a rule."""

from __future__ import annotations

import sys

import click
from rich.text import Text

from toril.cli.careful import INTERRUPTED
from toril.cli.migrate.progress import bars, interruptible
from toril.cli.migrate.target import LEFT, Journey, on_servers, rate_option, show_problems, so_many
from toril.cli.show import as_json, note, one_line, say
from toril.errors import InvalidValue
from toril.migrate import KeyRule, rename_keys


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--copy", is_flag=True, help="Copy them, with their type and time to live.")
@click.option("--verify", is_flag=True, help="Compare them with their copies.")
@rate_option
@on_servers
async def keys(at: Journey, old: str, new: str, copy: bool, verify: bool, rate: float | None) -> None:
    """Copy keys of any kind to new names, by a rule.

    <name> stands for a part without ':', <name*> for any text; NEW has a hash tag:

    toril migrate keys 'dedupe:<user>:<event>:<time>' 'dedupe:{<event>}:<user>:<event>:<time>'

    Without --copy or --verify it is a dry run. The old keys stay.
    """
    if copy and verify:
        raise InvalidValue("flags", "--copy --verify", "one of them: copy first, then verify")
    what = "copy" if copy else "verify" if verify else "plan"
    rule = KeyRule(old, new)
    with bars(at.json) as told:
        report = await interruptible(rename_keys(at.source, at.destination, rule, what, rate=rate, told=told))
    if report is None:
        note("stopped: run it again to go on")
        sys.exit(INTERRUPTED)
    if at.json:
        as_json(report.as_json())
    else:
        for before, after in report.examples if what == "plan" else ():
            say(Text(f"{one_line(before)} → {one_line(after)}"))
        counted = {
            "plan": f"{so_many(report.found, 'key')} would be copied.",
            "copy": f"{so_many(report.copied, 'key')} copied, {report.already:,} were there.",
            "verify": f"{report.already:,} of {so_many(report.found, 'key')} the same.",
        }
        say(Text(counted[what]))
        show_problems(report.problems)
    if report.problems:
        sys.exit(LEFT)
