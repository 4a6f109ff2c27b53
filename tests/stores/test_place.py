"""Which ClickHouse is meant, and what an error shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from toril.errors import InvalidValue
from toril.stores.clickhouse.place import Embedded, Remote, place_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("clickhouse://db", Remote("db", 8123, False, "toril")),
        ("clickhouses://db", Remote("db", 8443, True, "toril")),
        ("clickhouse://u:p%2F%40@[::1]:81/mine", Remote("::1", 81, False, "mine", "u", "p/@")),
        ("clickhouses://u@db:9/", Remote("db", 9, True, "toril", "u")),
    ],
)
def test_a_url_says_which_server(url: str, expected: Remote) -> None:
    assert place_of(url, None, "toril") == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://u:hidden@db",
        "clickhouse://",
        "clickhouse://u:hidden@db:port",
        "clickhouse://u:hidden@db/a/b",
        "clickhouse://u:hidden@db/a?x=1",
        "clickhouse://u:hidden@db/a-b",
        "clickhouse://u:hidden@db/1`; DROP",
        "clickhouse://u:hidden@[::1",
        "",
    ],
)
def test_a_bad_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        place_of(url, None, "toril")
    assert "hidden" not in str(caught.value)


def test_no_text_shows_the_password() -> None:
    place = place_of("clickhouses://u:hidden@[::1]/d", None, "toril")
    assert "hidden" not in repr(place) + str(place)
    assert str(place) == "clickhouses://[::1]:8443/d"


def test_a_directory_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert place_of(None, tmp_path / "link" / "x", "d") == Embedded((tmp_path / "x").resolve(), "d")


def test_one_place_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="exactly one"):
        place_of(None, None, "toril")
    with pytest.raises(InvalidValue, match="exactly one") as caught:
        place_of("clickhouse://u:hidden@db", tmp_path, "toril")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "1a", "a`b", "a.b", "é", "a" * 65])
def test_a_database_has_a_plain_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="database"):
        place_of(None, tmp_path, name)
