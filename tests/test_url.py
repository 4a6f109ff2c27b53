"""URLs: what is understood, and how the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril import InvalidValue, connect
from toril.connection.url import Address, Credentials, Target, hide_password, parse_url

A, B = Address("h1", 6379), Address("h2", 7000)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://", Target("detect", (Address("localhost", 6379),))),
        ("redis://h1", Target("detect", (A,))),
        ("valkey://h2:7000/3", Target("detect", (B,), database=3)),
        ("redis://h1?db=4", Target("detect", (A,), database=4)),
        ("redis://:p%40ss@h1", Target("detect", (A,), Credentials("", "p@ss"))),
        ("redis://user:pw@h1/1", Target("detect", (A,), Credentials("user", "pw"), database=1)),
        ("redis://h1?username=user&password=pw", Target("detect", (A,), Credentials("user", "pw"))),
        ("redis://[::1]:7000", Target("detect", (Address("::1", 7000),))),
        ("redis+cluster://h1,h2:7000", Target("cluster", (A, B))),
        (
            "redis+sentinel://h1,h2:7000/mymaster/2?sentinel_password=s",
            Target(
                "sentinel",
                (Address("h1", 26379), B),
                database=2,
                service="mymaster",
                sentinel_credentials=Credentials("", "s"),
            ),
        ),
        ("unix:///run/valkey.sock?db=2", Target("detect", (Address(path="/run/valkey.sock"),), database=2)),
        ("embedded://", Target("embedded")),
        (
            "embedded:///var/lib/toril?fsync=everysec",
            Target("embedded", home="/var/lib/toril", fsync="everysec"),
        ),
        ("embedded+cluster://", Target("embedded-cluster")),
        ("memory://", Target("memory")),
    ],
)
def test_urls_that_are_understood(url: str, target: Target) -> None:
    assert parse_url(url) == target


def test_tls_settings(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    tls = parse_url(f"rediss://h1?ssl_ca_certs={ca}&ssl_cert_reqs=none&ssl_check_hostname=false").tls
    assert tls is not None
    assert (tls.ca_certs, tls.verify, tls.check_hostname) == (str(ca), False, False)
    assert parse_url("rediss+cluster://h1").tls is not None
    assert parse_url("redis://h1").tls is None


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://h1", "the scheme must be one of redis://"),
        ("localhost:6379", "the scheme must be one of"),
        ("", "the scheme must be one of"),
        (7, "it must be a string"),
        ("redis://h1:port", "the port must be a whole number"),
        ("redis://h1:0", "the port must be a whole number from 1"),
        ("redis://h1:70000", "the port must be a whole number"),
        ("redis://h1/x", "the database must be a whole number"),
        ("redis://h1/-1", "the database must be a whole number"),
        ("redis://h1,h2", "several hosts need redis+cluster://"),
        ("redis://h1?nonsense=1", "parameters that mean nothing here: nonsense"),
        ("redis://h1?db=1&db=2", "given twice"),
        ("redis://user@h1", "a user but no password"),
        ("redis://h1,", "several hosts|has no host"),
        ("redis+cluster://h1,,h2", "has no host"),
        ("redis+cluster://h1/2", "a cluster has only database 0"),
        ("redis+sentinel://h1", "the master's name is missing"),
        ("rediss://h1?ssl_ca_certs=/no/such/file", "is not a file"),
        ("rediss://h1?ssl_cert_reqs=maybe", "must be one of required, none"),
        ("unix://relative/path", "an absolute path"),
        ("embedded://host/path", "the data directory goes into the path"),
        ("embedded://?fsync=never", "must be one of always, everysec"),
        ("memory://host", "takes no host"),
        ("redis://[::1", "not valid"),
        ("redis://:s3cret@[", "not valid"),
    ],
)
def test_urls_that_are_refused(url: Any, rule: str) -> None:
    with pytest.raises(InvalidValue, match="Redis URL") as caught:
        parse_url(url)
    assert any(part in str(caught.value) for part in rule.split("|"))


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for url in (text, f"redis://{text}", f"redis+cluster://{text}", f"unix://{text}"):
        try:
            parse_url(url)
        except InvalidValue:
            continue


def test_passwords_are_never_shown() -> None:
    for url in (
        "redis://user:s3cret@h1:x",
        "redis://:s3cret@h1/zzz",
        "redis://h1?password=s3cret&nonsense=1",
        "redis+sentinel://:s3cret@h1/?sentinel_password=s3cret",
        "redis://h1?PASSWORD=s3cret",
        "redis://user:/s3cret@h1",
        "redis://user:12/s3cret@h1",
        "redis://user:x#s3cret@h1",
        "redis://user:s3cret?x@h1",
        "redis://user:12?s3cret@h1",
        "redis://user:s3cret?x=y@h1",
        "redis+cluster://:s3cret/@h1,h2",
        "redis:user:s3cret@h1",
        "user:s3cret@h1",
    ):
        with pytest.raises(InvalidValue) as caught:
            parse_url(url)
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in hide_password(url)
    assert "s3cret" not in repr(parse_url("redis://:s3cret@h1"))
    for url in ("redis://h1:6379?ssl_ca_certs=/a@b.pem", "embedded:///home/a@b", "unix:///run/a@b.sock"):
        assert hide_password(url) == url
    assert hide_password("redis://user:pw@h1/1") == "redis://user:***@h1/1"
    assert hide_password("embedded://") == "embedded://"


def test_memory_is_chosen_never_a_fallback() -> None:
    with pytest.raises(InvalidValue, match="memory:// is the in-process mode of the runtime"):
        connect("memory://")


def test_waiting_times_are_checked() -> None:
    for name in ("patience", "connect_timeout", "silence"):
        with pytest.raises(InvalidValue, match=name):
            connect("redis://h1", **{name: 0})  # type: ignore[arg-type]
