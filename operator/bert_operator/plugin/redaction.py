"""Takes secrets out of what is handed to others. Pure.

By name (environment variables, keys and assignments that are called like a secret) and by form (credentials in URLs,
bearer tokens, private keys). What is called otherwise and looks like nothing in particular cannot be told from a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "REDACTED"

_SECRET = (
    r"(?:secret|passw(?:or)?d|passphrase|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization)"
)
_NAME = re.compile(_SECRET, re.IGNORECASE)
# Keys that are called so and hold no secret: numbers of tokens, references to a Secret by its name.
_HARMLESS = re.compile(
    r"tokens|_per_s|tokenize|secret(?:Name|KeyRef|Ref)|imagePullSecrets|serviceAccountToken|expirationSeconds",
    re.IGNORECASE,
)
# A log may hold lines of any length: each begins at a boundary alone, and repeats are bounded, or the time that a
# search takes would grow with the square of the length.
_IN_TEXT = (
    # https://user:password@host  # pragma: allowlist secret
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@:]{0,256}:[^\s/@]{1,256}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s{1,8}[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        HIDDEN,
    ),
    # JSON Web Tokens, as service accounts have them
    (re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), HIDDEN),
    # NAME_TOKEN=value, "password": "value"  # pragma: allowlist secret
    (
        re.compile(
            rf"(?i)(?<![A-Z0-9_-])([A-Z0-9_-]{{0,64}}?{_SECRET}(?![a-z])[A-Z0-9_-]{{0,32}}\"?\s{{0,4}}[=:]\s{{0,4}})"
            r"(\"[^\"]*\"|'[^']*'|[^\s,;\"']+)"
        ),
        rf"\1{HIDDEN}",
    ),
    # --hub-token value
    (re.compile(rf"(?i)(?<!-)(--[a-z-]{{0,32}}{_SECRET}[a-z-]{{0,32}}\s{{1,8}})(\S+)"), rf"\1{HIDDEN}"),
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def redact_text(text: str) -> str:
    """Return text, such as a log, without what looks like a secret."""
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def redact(value: Any) -> Any:
    """Return a document of JSON without secrets; names of variables and of Secrets stay."""
    if isinstance(value, Mapping):
        is_variable = isinstance(value.get("name"), str) and "value" in value
        found = {}
        for key, item in value.items():
            if key == _LAST_APPLIED or key == "managedFields":
                # The same once more, as text, where nothing could be found by name.
                continue
            name = value["name"] if is_variable and key == "value" else key
            hides = isinstance(item, str | int | float) and not isinstance(item, bool) and is_secret(str(name))
            found[key] = HIDDEN if hides else redact(item)
        return found
    if isinstance(value, list):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def is_secret(name: str) -> bool:
    """Tell whether something that is called so is a secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)
