"""The ids of sent commands: the tenant's name, ``/``, and what the command says it stands for.

BullMQ takes no ``:`` in an id, and no whole number. So ``make_job_id`` may return any text, and here it gets
a form that can always be an id and be read back: ``acme/trace-123``. What has a meaning there is written as
in a URL: ``:`` as ``%3A``, ``%`` as ``%25``, ``~`` (which marks the second place of an id) as ``%7E``, and
``/`` in the tenant's name as ``%2F``. Two tenants never share an id.
"""

from __future__ import annotations

from toril.aggregate import check_tenant
from toril.events.errors import ValidationError

LONGEST_JOB_KEY = 512
"""Bytes of what ``make_job_id`` returns, at most."""

_ESCAPED = {":": "%3A", "~": "%7E"}


def job_id_of(tenant: str, key: object) -> str:
    """The id of the jobs that a tenant's commands with one key share; a key that cannot be one is refused."""
    check_tenant(tenant)
    return f"{_escape(tenant).replace('/', '%2F')}/{_escape(check_job_key(key))}"


def read_job_id(job_id: str) -> tuple[str, str]:
    """The tenant and the key in an id, also where it names the second place."""
    tenant, slash, key = job_id.partition("~")[0].partition("/")
    if not slash:
        raise ValidationError("job id", job_id, "it has two parts, tenant/key")
    return _unescape(tenant.replace("%2F", "/")), _unescape(key)


def check_job_key(key: object) -> str:
    """What ``make_job_id`` returned, or a :class:`~toril.events.ValidationError` that states the rule."""
    if not isinstance(key, str):
        rule = "make_job_id must return text, or None for a job of its own"
    elif not key.strip():
        rule = "make_job_id must return text that is not blank, or None for a job of its own"
    elif not key.isprintable():
        rule = "it must be printable text: no control character, nothing that UTF-8 cannot encode"
    elif len(key.encode()) > LONGEST_JOB_KEY:
        rule = f"it has more than {LONGEST_JOB_KEY} bytes"
    else:
        return key
    raise ValidationError("job id", key, rule)


def _escape(text: str) -> str:
    text = text.replace("%", "%25")
    for letter, written in _ESCAPED.items():
        text = text.replace(letter, written)
    return text


def _unescape(text: str) -> str:
    for letter, written in _ESCAPED.items():
        text = text.replace(written, letter)
    return text.replace("%25", "%")
