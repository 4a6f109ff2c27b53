"""Admission tokens: what is signed is what is read, and nothing else passes."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toril.errors import InvalidValue
from toril.room.tokens import (
    LEEWAY,
    TYPE,
    AdmissionTokens,
    Algorithm,
    SigningKey,
    TokenRefused,
    TokenVerifier,
    rotate,
)

NOW = 1_800_000_000
ALGORITHMS: list[Algorithm] = ["EdDSA", "HS256"]


@pytest.fixture(params=ALGORITHMS)
def tokens(request: pytest.FixtureRequest) -> AdmissionTokens:
    return AdmissionTokens([SigningKey.generate(request.param)])


def issued(tokens: AdmissionTokens, **changed: Any) -> str:
    said: dict[str, Any] = {
        "event": "evt",
        "user": "ana",
        "session": "s-1",
        "issued": NOW,
        "expires": NOW + 300,
    }
    return tokens.issue(**said | changed)


def reason(verifier: TokenVerifier, token: Any, **changed: Any) -> str:
    said: dict[str, Any] = {"event": "evt", "user": "ana", "now": NOW}
    with pytest.raises(TokenRefused) as refused:
        verifier.verify(token, **said | changed)
    return refused.value.reason


def test_what_is_signed_is_what_is_read(tokens: AdmissionTokens) -> None:
    admitted = tokens.verify(issued(tokens), event="evt", user="ana", now=NOW)
    assert (admitted.event, admitted.user, admitted.session) == ("evt", "ana", "s-1")
    assert (admitted.issued, admitted.expires) == (NOW, NOW + 300)
    assert issued(tokens) == issued(tokens)  # a lost answer, asked for again, is the same


def test_it_is_bound_to_the_event_the_user_and_the_time(tokens: AdmissionTokens) -> None:
    token = issued(tokens)
    assert reason(tokens, token, event="other") == "event"
    assert reason(tokens, token, user="eve") == "user"
    assert reason(tokens, token, user="") == "user"
    assert reason(tokens, token, now=NOW + 300 + LEEWAY) == "expired"
    assert reason(tokens, token, now=NOW - LEEWAY - 1) == "early"
    # Clocks that differ a little are no reason to turn somebody away.
    assert tokens.verify(token, event="evt", now=NOW + 300 + LEEWAY - 0.1).user == "ana"
    assert tokens.verify(token, event="evt", now=NOW - LEEWAY + 0.1).user == "ana"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10**6), char=st.sampled_from("ABab01-_."))
def test_a_token_that_was_changed_anywhere_is_refused(algorithm: Algorithm, place: int, char: str) -> None:
    tokens = AdmissionTokens([FIXED[algorithm]])
    token = issued(tokens)
    at = place % len(token)
    changed = token[:at] + char + token[at + 1 :]
    if _bytes(changed) != _bytes(token):
        assert reason(tokens, changed) in ("malformed", "signature", "unknown key")


FIXED = {algorithm: SigningKey.generate(algorithm) for algorithm in ALGORITHMS}


def _bytes(token: str) -> list[bytes] | str:
    """What a token says: the last bits of its last character say nothing."""
    try:
        return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")]
    except ValueError:
        return token


@pytest.mark.parametrize(
    "token",
    ["", "x", "a.b.c", "é.é.é", "." * 50, "a" * 5000, None, 7, b"x"],
    ids=lambda token: repr(token)[:12],
)
def test_what_is_no_token_is_refused(tokens: AdmissionTokens, token: Any) -> None:
    assert reason(tokens, token) == "malformed"


def test_the_old_tricks_do_not_work() -> None:
    key = SigningKey.generate("EdDSA")
    tokens = AdmissionTokens([key])
    claims = {"iss": "toril", "aud": "evt", "sub": "ana", "jti": "s", "iat": NOW, "exp": NOW + 9}
    header = {"kid": key.kid, "typ": TYPE}
    # Without a signature.
    assert reason(tokens, jwt.encode(claims, "", algorithm="none", headers=header)) == "unknown key"
    # The public key as an HMAC secret.
    public = base64.urlsafe_b64decode(key.jwk["x"] + "=")
    assert reason(tokens, jwt.encode(claims, public, algorithm="HS256", headers=header)) == "unknown key"
    private = jwt.PyJWK(dict(key.jwk))

    def forged(header: dict[str, str], **changed: Any) -> str:
        said = {name: value for name, value in (claims | changed).items() if value is not None}
        return jwt.encode(said, private, algorithm="EdDSA", headers=header)

    assert tokens.verify(forged(header), event="evt", now=NOW).session == "s"
    # Another kind of JWT, signed with the same key.
    assert reason(tokens, forged({**header, "typ": "JWT"})) == "malformed"
    assert reason(tokens, forged(header, iss="other")) == "malformed"
    for name in claims:
        assert reason(tokens, forged(header, **{name: None})) == "malformed"
    # One token for several events.
    assert reason(tokens, forged(header, aud=["evt", "other"])) == "malformed"
    assert reason(tokens, forged(header, exp=NOW + 9.5)) == "malformed"


def test_anyone_can_check_with_the_public_key_and_nobody_can_sign_with_it() -> None:
    key = SigningKey.generate("EdDSA")
    tokens = AdmissionTokens([key])
    document = json.loads(json.dumps(tokens.jwks()))
    assert set(document["keys"][0]) == {"kty", "crv", "x", "kid", "alg", "use"}
    assert TokenVerifier(document).verify(issued(tokens), event="evt", now=NOW).user == "ana"
    with pytest.raises(InvalidValue, match="no private part"):
        SigningKey(document["keys"][0])
    assert AdmissionTokens([SigningKey.generate("HS256")]).jwks() == {"keys": []}
    assert key.jwk["d"] not in repr(tokens) + repr(key)


def test_keys_are_rotated(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = AdmissionTokens.from_file(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert AdmissionTokens.from_file(file).keys == first.keys
    token = issued(first)
    made = rotate(file, "HS256")
    second = AdmissionTokens.from_file(file)
    assert [key.kid for key in second.keys] == [made.kid, first.keys[0].kid]
    assert second.verify(token, event="evt", now=NOW).session == "s-1"
    assert reason(first, issued(second)) == "unknown key"
    rotate(file)
    assert reason(AdmissionTokens.from_file(file), token) == "unknown key"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("jwk", "message"),
    [
        ({"kty": "oct", "k": "AAAA", "alg": "HS256"}, "kid"),
        ({"kty": "oct", "k": "AAAA", "alg": "RS256", "kid": "a"}, "EdDSA or HS256"),
        (
            {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "d": "AAAA", "alg": "EdDSA", "kid": "a"},
            "JSON Web Key",
        ),
    ],
)
def test_keys_that_are_none_are_refused(jwk: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        SigningKey(jwk)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    key = SigningKey.generate()
    with pytest.raises(InvalidValue, match="at least 32 bytes"):
        SigningKey.from_secret(b"short", kid="a")
    with pytest.raises(InvalidValue, match="at least one"):
        AdmissionTokens([])
    with pytest.raises(InvalidValue, match="of its own"):
        AdmissionTokens([key, key])
    with pytest.raises(InvalidValue, match="EdDSA or HS256"):
        SigningKey.generate("RS256")  # type: ignore[arg-type]
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(InvalidValue, match="cannot be read"):
        AdmissionTokens.from_file(tmp_path / "keys.json")


def test_without_the_extra_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["jwt"] = None
from toril.room.tokens import NoTokens, SigningKey
try:
    SigningKey.generate()
except NoTokens as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'toril[room]'" in done.stdout
