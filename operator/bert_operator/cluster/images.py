"""Names of container images: whether two are of the same repository. Pure.

Names are not normalized: ``trainer`` and ``docker.io/library/trainer`` are two repositories here. Source: the grammar
of references, https://github.com/distribution/reference
"""

from __future__ import annotations

import re

_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-f]{32,128}"
_VERSION = re.compile(rf"(?::{_TAG})?(?:@{_DIGEST})?")


def is_of_same_repository(image: str, trusted: str) -> bool:
    """Return whether an image differs from a trusted one in tag and digest only; either may have none.

    Everything before them must be the same text, so no hostile name with another registry, port or path is accepted.
    """
    repository = _repository(trusted)
    return image.startswith(repository) and _VERSION.fullmatch(image, len(repository)) is not None


def _repository(trusted: str) -> str:
    """Return a well-formed name without digest and tag; a colon before the last slash belongs to a port."""
    name = trusted.partition("@")[0]
    last_slash = name.rfind("/")
    colon = name.find(":", last_slash + 1)
    return name if colon < 0 else name[:colon]
