"""The waiting page, in Chromium, against a server that runs."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    Page,
    ViewportSize,
    async_playwright,
    expect,
)
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.conftest import Servers, emptied
from tests.server.parts import Served, serving
from tests.server.room.parts import ADMIN, TOKENS
from tests.waiting import until
from toril import connect
from toril.room import LaneSettings, Room, Settings
from toril.server.room import PATIENCE, Rate, RoomApi, RoomOptions
from toril.server.room.pages import PageView
from toril.server.routes import RouteGroup

CHROMIUM = shutil.which("chromium") or "chromium, which make test installs"
ARGS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PHONE, DESKTOP = ViewportSize(width=320, height=640), ViewportSize(width=1280, height=900)
Look = Literal["light", "dark"]

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield made
        await made.close()


class Visit:
    """Somebody at the page, and the room behind it."""

    def __init__(self, context: BrowserContext, page: Page, served: Served, room: Room, api: RoomApi) -> None:
        self.context, self.page, self.served, self.room, self.api = context, page, served, room, api

    @property
    def url(self) -> str:
        return f"{self.served.url}/queue/{self.room.name}"

    async def open(self) -> None:
        await self.page.goto(self.url)

    async def state(self, wanted: str) -> None:
        await expect(self.page.locator("main")).to_have_attribute("data-state", wanted, timeout=15_000)

    async def let_in(self) -> None:
        await self.room.configure(main=LaneSettings(rate=1000))

    async def ticket(self) -> Any:
        return await self.page.evaluate("JSON.parse(localStorage.getItem('toril.room.evt'))?.token")


@asynccontextmanager
async def visit(
    servers: Servers, browser: Browser, *, how: Look = "light", **settings: Any
) -> AsyncIterator[Visit]:
    async def inside(request: Request) -> Response:
        return PlainTextResponse("welcome " + request.query_params["admission_token"])

    url = emptied(servers.get("valkey-standalone")).url
    async with connect(url) as redis:
        limit = Rate(rate=1000, burst=1000)
        api = RoomApi(redis, RoomOptions(tokens=TOKENS, admin=ADMIN, calls=limit))
        room = Room(redis, "evt")
        said: dict[str, Any] = {"main": LaneSettings(rate=0, max_active=0), "patience": PATIENCE}
        await room.create(Settings(**said | settings))
        await api.rooms.show("evt", PageView("Autumn Nights", "/inside?from=queue"))
        target = RouteGroup(name="target", pages=[Route("/inside", inside)])
        async with serving(url, groups=[api.group(), target], grace=1.0) as served:
            context = await browser.new_context(viewport=PHONE, color_scheme=how, reduced_motion="reduce")
            page = await context.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda problem: problems.append(str(problem)))
            page.on(
                "console",
                lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None,
            )
            yield Visit(context, page, served, room, api)
            assert not problems
            await context.close()


async def test_one_waits_and_is_taken_in(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser) as at:
        for _ in range(60):
            await at.room.join()
        await at.open()
        await at.state("waiting")
        await expect(at.page.locator("#number")).to_have_text("61")
        await expect(at.page).to_have_title("61 · Autumn Nights")
        # The place is kept through a reload, and in another tab of the same browser.
        ticket = await at.ticket()
        await at.page.reload()
        await at.state("waiting")
        assert await at.ticket() == ticket
        other = await at.context.new_page()
        await other.goto(at.url)
        await expect(other.locator("#number")).to_have_text("61")
        await other.close()
        assert (await at.room.stats()).lanes["main"].waiting == 61

        await at.room.configure(main=LaneSettings(rate=1000, burst=30, max_active=30))

        async def thirty_are_in() -> bool:
            return (await at.room.status(ticket)).position == 31

        await until(thirty_are_in)
        await at.page.reload()
        await at.state("near")
        await expect(at.page.locator("#title")).to_have_text("Almost there")
        # From here on it listens: the next thing it hears is that it may come in.
        await at.let_in()
        await at.page.wait_for_url("**/inside?from=queue&admission_token=*", timeout=15_000)
        token = (await at.page.locator("body").inner_text()).removeprefix("welcome ")
        assert TOKENS.verify(token, event="evt").user == ""


async def test_before_the_start_it_counts_down(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser, gather=True, opens_ms=2**52) as at:
        await at.open()
        await at.state("prequeue")
        await expect(at.page.locator("#label")).to_have_text("until it begins")
        await at.let_in()
        await at.room.start()

        async def is_open() -> bool:
            snapshot = await at.room.snapshot()
            return snapshot is not None and snapshot.phase == "open"

        await until(is_open)
        await at.page.reload()
        await at.page.wait_for_url("**/inside**", timeout=15_000)


async def test_a_pause_is_said(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser) as at:
        await at.room.pause()
        await at.room.tick()
        await at.open()
        await expect(at.page.locator("#notice")).to_contain_text("paused", timeout=15_000)
        await expect(at.page.locator("#title")).to_have_text("A short pause")


async def test_who_is_turned_away_is_told_and_can_try_again(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser, max_waiting=1) as at:
        first = await at.room.join()
        await at.open()
        await at.state("full")
        await at.room.leave(str(first.token))
        await at.page.get_by_role("button", name="Try again").click()
        await at.state("near")
        # And one who was sent away.
        ticket = await at.ticket()
        await at.room.revoke(ticket.rsplit(".", 1)[0])
        await at.state("lost")
        await at.page.get_by_role("button", name="Join again").click()
        await at.state("near")
        assert await at.ticket() != ticket


async def test_one_leaves(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser) as at:
        at.page.on("dialog", lambda dialog: dialog.accept())
        await at.open()
        await at.state("near")
        await at.page.get_by_role("button", name="Leave the line").click()
        await at.state("left")
        assert (await at.room.stats()).lanes["main"].waiting == 0


async def test_a_connection_that_is_lost_is_found_again(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser) as at:
        for _ in range(60):
            await at.room.join()
        await at.open()
        await at.state("waiting")
        ticket = await at.ticket()
        await at.context.set_offline(True)
        await at.page.evaluate("dispatchEvent(new Event('online'))")  # it looks, and nobody answers
        await expect(at.page.locator("#notice")).to_contain_text("connection is lost", timeout=15_000)
        await at.context.set_offline(False)
        await expect(at.page.locator("#notice")).to_be_hidden(timeout=15_000)
        assert await at.ticket() == ticket


@pytest.mark.parametrize("how", ["light", "dark"])
async def test_everybody_can_use_it(servers: Servers, browser: Browser, how: Look, tmp_path: Path) -> None:
    """It fits a narrow phone, its text can be read, it needs no mouse, and says aloud what changes."""
    async with visit(servers, browser, how=how) as at:
        await at.open()
        await at.state("near")
        for size in (PHONE, DESKTOP):
            await at.page.set_viewport_size(size)
            assert await at.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for one in await at.page.evaluate(CONTRASTS):
            assert one["ratio"] >= 4.5, one
        live = at.page.locator("[aria-live=polite]")
        await expect(live).to_contain_text("Almost there")
        await at.page.keyboard.press("Tab")
        assert await at.page.evaluate("document.activeElement.id") == "leave"
        button = await at.page.locator("#leave").bounding_box()
        assert button is not None
        assert button["height"] >= 44
        assert await at.page.evaluate("document.getAnimations().length") == 0, (
            "no motion where none is wanted"
        )
        await at.page.screenshot(path=tmp_path / "page.png")


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (text) => rgb(text).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const card = getComputedStyle(document.querySelector("main")).backgroundColor;
  return [...document.querySelectorAll("main *")]
    .filter((el) => el.offsetParent && [...el.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((el) => {
      const [a, b] = [light(getComputedStyle(el).color), light(card)].sort((x, y) => y - x);
      return { text: el.textContent, ratio: (a + 0.05) / (b + 0.05) };
    });
}"""


async def test_nothing_comes_from_elsewhere_and_nothing_gets_in(servers: Servers, browser: Browser) -> None:
    async with visit(servers, browser) as at:
        evil = "</script><script>document.title='evil'</script><img src=x onerror=alert(1)>"
        await at.api.rooms.show("evt", PageView(evil))
        asked: list[str] = []
        at.page.on("request", lambda request: asked.append(request.url))
        await at.open()
        await at.state("near")
        assert all(url.startswith(at.served.url) for url in asked), asked
        await expect(at.page.locator("#event")).to_have_text(evil)
        reply = await at.served.http.get("/queue/evt")
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        unknown = await at.served.http.get("/queue/nobody-knows")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "EVENT_NOT_FOUND")
