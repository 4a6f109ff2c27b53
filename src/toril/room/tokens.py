"""Admission tokens: a signed proof that somebody was let in, which anyone can check without asking Redis.

A token is a JWT, signed with Ed25519 (whoever checks it needs the public key alone) or with HMAC-SHA256
(whoever checks it could make one as well). It names the event, the user, the session and when it ends. That
it is used once is for the room to see: the session's id is in it.

This needs the extra ``toril[room]``.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from toril.errors import InvalidValue
from toril.room.errors import RoomError

if TYPE_CHECKING:
    from jwt import PyJWK

Algorithm = Literal["EdDSA", "HS256"]
Reason = Literal["malformed", "unknown key", "signature", "expired", "early", "event", "user"]

TYPE = "admission+jwt"
"""What a token says it is, so that no other JWT of the same issuer passes for one."""

ISSUER = "toril"
LONGEST = 4096
"""Characters of a token: a longer one is not looked at."""
LEEWAY = 5.0
"""Seconds by which the clock of whoever checks may differ from the server's."""
SHORTEST_SECRET = 32
"""Bytes of an HMAC secret: as many as the digest has."""
KEPT = 2
"""Keys that a file keeps when a new one is made: what the last one has signed is still good."""


class TokenRefused(RoomError):
    """An admission token that lets nobody in. ``reason`` says why, for programs."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class NoTokens(RoomError):
    """The extra that signs tokens is not installed."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs tokens, as a JSON Web Key with its private part."""

    jwk: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise InvalidValue("key's alg", self.jwk.get("alg"), "EdDSA or HS256")
        if not self.kid:
            raise InvalidValue("key's kid", self.jwk.get("kid"), "a name, so that keys can be told apart")
        wanted = "d" if self.algorithm == "EdDSA" else "k"
        if not self.jwk.get(wanted):
            raise InvalidValue("key", self.kid, f"it has no private part ({wanted!r}), so it cannot sign")
        _loaded(self.jwk)

    def __repr__(self) -> str:
        return f"SigningKey({self.kid!r}, {self.algorithm})"

    @classmethod
    def generate(cls, algorithm: Algorithm = "EdDSA") -> Self:
        """A new key."""
        kid = secrets.token_hex(8)
        if algorithm == "HS256":
            return cls.from_secret(secrets.token_bytes(SHORTEST_SECRET), kid=kid)
        if algorithm != "EdDSA":
            raise InvalidValue("algorithm", algorithm, "EdDSA or HS256")
        _require()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from jwt.algorithms import OKPAlgorithm

        made = OKPAlgorithm.to_jwk(Ed25519PrivateKey.generate(), as_dict=True)
        return cls({**made, "kid": kid, "alg": algorithm, "use": "sig"})

    @classmethod
    def from_secret(cls, secret: bytes, *, kid: str) -> Self:
        """A key of HMAC-SHA256."""
        if len(secret) < SHORTEST_SECRET:
            raise InvalidValue("secret", f"({len(secret)} bytes)", f"at least {SHORTEST_SECRET} bytes")
        value = urlsafe_b64encode(secret).rstrip(b"=").decode()
        return cls({"kty": "oct", "k": value, "kid": kid, "alg": "HS256", "use": "sig"})

    @property
    def kid(self) -> str:
        """Its name, which tokens carry."""
        return self.jwk.get("kid", "")

    @property
    def algorithm(self) -> str:
        """``EdDSA`` or ``HS256``."""
        return self.jwk.get("alg", "")

    @property
    def public(self) -> dict[str, str] | None:
        """What may be told to anyone; None where the key has no such part."""
        if self.algorithm == "HS256":
            return None
        return {name: value for name, value in self.jwk.items() if name != "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What a token says."""

    event: str
    user: str
    """Empty where nobody said who they are: then the session alone tells them apart."""
    session: str
    """The id of the admission (``jti``): by it, the room lets a token be used once."""
    issued: int
    """Seconds since 1970."""
    expires: int


class TokenVerifier:
    """Checks tokens, with no server to ask: only the keys are needed.

    ::

        verifier = TokenVerifier(httpx.get("https://tickets.example/.well-known/jwks.json").json())
        admitted = verifier.verify(token, event="evt_2025_1001", user="ana")
    """

    def __init__(self, jwks: Mapping[str, Any], *, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self._keys: dict[str, PyJWK] = {key["kid"]: _loaded(key) for key in _keys_of(jwks)}

    def verify(
        self,
        token: str,
        *,
        event: str | None = None,
        user: str | None = None,
        now: float | None = None,
    ) -> Admitted:
        """What a token says, if it is still good, and for this event and this user, where they are named.

        Name the event wherever there is one: a token for another event must not pass.
        """
        jwt = _require()
        key = self._key_of(token)
        try:
            # Event and times are looked at below: with a clock that tests can set, and a reason for each.
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],  # the key's, never the token's own word for it
                issuer=self.issuer,
                options={
                    "require": ["exp", "iat", "jti", "sub", "aud"],
                    "verify_exp": False,
                    "verify_aud": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidSignatureError:
            raise TokenRefused("signature", "the token was not signed here, or was changed") from None
        except jwt.InvalidTokenError as problem:
            raise TokenRefused("malformed", f"it is not an admission token: {problem}") from None
        admitted = _read(claims)
        if event is not None and admitted.event != event:
            raise TokenRefused("event", "the token is for another event")
        _check_times(admitted, time.time() if now is None else now)
        if user is not None and not secrets.compare_digest(admitted.user.encode(), user.encode()):
            raise TokenRefused("user", "the token is somebody else's")
        return admitted

    def _key_of(self, token: str) -> PyJWK:
        jwt = _require()
        if not isinstance(token, str) or len(token) > LONGEST:
            raise TokenRefused("malformed", f"a token is a text of at most {LONGEST} characters")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as problem:
            raise TokenRefused("malformed", f"it is not an admission token: {problem}") from None
        if header.get("typ") != TYPE:
            raise TokenRefused(
                "malformed", f"it is not an admission token: its type is {header.get('typ')!r}"
            )
        key = self._keys.get(str(header.get("kid")))
        if key is None or header.get("alg") != key.algorithm_name:
            raise TokenRefused("unknown key", "the token was signed with a key that is not known here")
        return key


class AdmissionTokens(TokenVerifier):
    """Makes tokens, and checks them. The first key signs; what any of the others has signed is good.

    To rotate: put a new key first, and drop the old one when its last token has ended.
    """

    def __init__(self, keys: Sequence[SigningKey], *, issuer: str = ISSUER) -> None:
        if not keys:
            raise InvalidValue("keys", [], "at least one, to sign with")
        super().__init__({"keys": [dict(key.jwk) for key in keys]}, issuer=issuer)
        if len(self._keys) != len(keys):
            raise InvalidValue("keys", [key.kid for key in keys], "each with a name (kid) of its own")
        self.keys = tuple(keys)

    def __repr__(self) -> str:
        return f"AdmissionTokens({list(self.keys)})"

    @classmethod
    def from_file(cls, path: Path, *, issuer: str = ISSUER) -> Self:
        """With the keys of a file; one that does not exist is made, readable by its owner alone."""
        if not path.exists():
            _write(path, [SigningKey.generate()], exclusive=True)
        return cls(_read_file(path), issuer=issuer)

    def issue(self, *, event: str, user: str, session: str, issued: int, expires: int) -> str:
        """A token. It is the same text for the same admission, as often as it is asked for."""
        jwt = _require()
        key = self.keys[0]
        claims = {
            "iss": self.issuer,
            "aud": event,
            "sub": user,
            "jti": session,
            "iat": issued,
            "exp": expires,
        }
        made: str = jwt.encode(
            claims, self._keys[key.kid], algorithm=key.algorithm, headers={"kid": key.kid, "typ": TYPE}
        )
        return made

    def jwks(self) -> dict[str, Any]:
        """What others check tokens with: the public parts. HMAC secrets have none, and are not told."""
        return {"keys": [public for key in self.keys if (public := key.public) is not None]}


def rotate(path: Path, algorithm: Algorithm = "EdDSA", *, keep: int = KEPT) -> SigningKey:
    """Put a new key first in a file, and drop all but the newest ``keep``."""
    if keep < 1:
        raise InvalidValue("keep", keep, "at least 1")
    made = SigningKey.generate(algorithm)
    before = _read_file(path) if path.exists() else []
    _write(path, [made, *before][:keep], exclusive=False)
    return made


# ---------------------------------------------------------------------------- inside


def _require() -> Any:
    try:
        import jwt
    except ModuleNotFoundError:
        raise NoTokens(
            "admission tokens need PyJWT, which is not installed: pip install 'toril[room]'"
        ) from None
    return jwt


def _loaded(jwk: Mapping[str, Any]) -> PyJWK:
    jwt = _require()
    try:
        made: PyJWK = jwt.PyJWK(dict(jwk))
    except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError, KeyError, TypeError) as problem:
        raise InvalidValue("key", jwk.get("kid"), f"it is not a JSON Web Key: {problem}") from None
    if made.algorithm_name not in get_args(Algorithm):
        raise InvalidValue("key's alg", made.algorithm_name, "EdDSA or HS256")
    return made


def _keys_of(jwks: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(keys, list) or not all(isinstance(key, Mapping) and key.get("kid") for key in keys):
        raise InvalidValue("jwks", "(not shown)", "an object with a list 'keys' of JSON Web Keys with a kid")
    return keys


def _read(claims: Mapping[str, Any]) -> Admitted:
    # A list of audiences would make one token good for several events.
    texts, times = (claims["aud"], claims["sub"], claims["jti"]), (claims["iat"], claims["exp"])
    if not all(isinstance(one, str) for one in texts) or not all(type(one) is int for one in times):
        raise TokenRefused("malformed", "it is not an admission token: a claim is of another type")
    return Admitted(
        event=claims["aud"],
        user=claims["sub"],
        session=claims["jti"],
        issued=claims["iat"],
        expires=claims["exp"],
    )


def _check_times(admitted: Admitted, now: float) -> None:
    if now >= admitted.expires + LEEWAY:
        raise TokenRefused("expired", f"the token has ended {now - admitted.expires:.0f} seconds ago")
    if now < admitted.issued - LEEWAY:
        raise TokenRefused("early", "the token is from the future: a clock is wrong")


def _read_file(path: Path) -> list[SigningKey]:
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise InvalidValue("key file", str(path), f"it cannot be read: {problem}") from None
    return [SigningKey(key) for key in _keys_of(said)]


def _write(path: Path, keys: Sequence[SigningKey], *, exclusive: bool) -> None:
    """All of it at once: a process that reads meanwhile sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    passing = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"keys": [dict(key.jwk) for key in keys]}, file, indent=1)
    try:
        if exclusive:
            path.hardlink_to(passing)  # the first of several processes wins, and all use its key
        else:
            passing.replace(path)
    except FileExistsError:
        pass
    finally:
        passing.unlink(missing_ok=True)
