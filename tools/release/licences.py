"""Which licence a package states, as an SPDX expression, and whether this project may depend on it.

Packages say it in three ways: an expression (PEP 639), free text, or a classifier. What the last two mean stands here;
what they leave open, and what is allowed, in licences.toml beside this file.
"""

from __future__ import annotations

import tomllib
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Any

from license_expression import ExpressionError, LicenseSymbol, Licensing, get_spdx_licensing

_TABLE = Path(__file__).with_name("licences.toml")
_TEXTS = {
    **dict.fromkeys(("apache", "apache 2.0", "apache 2.0 license", "apache license 2.0"), "Apache-2.0"),
    "mit license": "MIT",
    **dict.fromkeys(("bsd 3-clause license", "3-clause bsd license"), "BSD-3-Clause"),
    "bsd 2-clause license": "BSD-2-Clause",
    "isc license": "ISC",
    "nvidia proprietary software": "LicenseRef-NVIDIA-Proprietary",
}
# Those that name one licence; "BSD License" names several.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
}


@cache
def licence_table() -> dict[str, Any]:
    """Return licences.toml: allowed, stated, inside and exceptions."""
    return tomllib.loads(_TABLE.read_text())


@cache
def spdx() -> Licensing:
    """Return what parses SPDX expressions; making it takes half a second."""
    return get_spdx_licensing()


def state_licence(metadata: Message) -> str:
    """Return the SPDX expression that a distribution's metadata means, "" where it leaves the licence open."""
    name = str(metadata["Name"]).lower().replace("_", "-")
    stated: dict[str, str] = {**licence_table()["stated"], **licence_table()["inside"]}
    text = str(metadata.get("License-Expression") or metadata.get("License") or "").strip()
    found = stated.get(name) or _TEXTS.get(text.lower()) or (text if is_expression(text) else "")
    if found:
        return found
    kinds = [str(line).rpartition("::")[2].strip() for line in metadata.get_all("Classifier") or []]
    return " AND ".join(_CLASSIFIERS[kind] for kind in kinds if kind in _CLASSIFIERS)


def is_expression(text: str) -> bool:
    """Whether a text is an SPDX expression with known names; LicenseRef-... names are."""
    if not text or "\n" in text:
        return False
    licensing = spdx()
    try:
        names = licensing.license_symbols(licensing.parse(text))
    except ExpressionError:
        return False
    known = licensing.known_symbols
    return bool(names) and all(name.key in known or name.key.startswith("LicenseRef-") for name in names)


def is_allowed(expression: str) -> bool:
    """Whether an expression can be met with allowed licences alone: one side of OR, every side of AND."""
    return bool(expression) and _meets(spdx().parse(expression), set(licence_table()["allowed"]))


def _meets(node: Any, allowed: set[str]) -> bool:
    if isinstance(node, LicenseSymbol) or not getattr(node, "args", ()):
        return str(node) in allowed
    answers = [_meets(part, allowed) for part in node.args]
    return any(answers) if node.__class__.__name__ == "OR" else all(answers)
