"""Names of container images: which belong together, and what a tag stood for when it was pulled. Pure.

Source: the grammar of references, https://github.com/distribution/reference
"""

from __future__ import annotations

import re

PLACEHOLDER_REGISTRY = "registry.invalid"
"""Where the images are that are shipped as defaults: nowhere, since no name below .invalid resolves (RFC 6761, 6.4)."""

_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-f]{32,128}"
_VERSION = re.compile(rf"(?::{_TAG})?(?:@{_DIGEST})?")
# Of a manifest, as registries have it. docker-pullable:// stands before it where Docker runs the containers.
_PULLED = re.compile(r"(?:docker-pullable://)?([^@\s]+)@(sha256:[0-9a-f]{64})")
_NEVER = "Never"
_FOLDER = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# What may follow a registry, a folder or a repository, and what a name that ends at a slash, a colon or an @.
_BELOW = re.compile(rf"(?:/{_FOLDER})*(?::{_TAG})?(?:@{_DIGEST})?")
_AFTER = {
    "/": re.compile(rf"{_FOLDER}{_BELOW.pattern}"),
    ":": re.compile(rf"{_TAG}(?:@{_DIGEST})?"),
    "@": re.compile(_DIGEST),
}
# A registry by its looks: docker.io, registry.example:5000, localhost. The rest without a slash, such as trainer or
# trainer:1, are repositories of Docker Hub.
_REGISTRY = re.compile(r"[^/:]*\.[^/]*|localhost(?::\d+)?")


def is_below(image: str, prefix: str) -> bool:
    """Return whether an image is a prefix, or below it: the next part after a whole one, a tag, or a digest.

    A port is no tag: ``registry.example`` does not stand for registry.example:5000/x, which is another registry, and
    registry.example:5000 alone is an image of Docker Hub with that tag, below neither.
    """
    if _REGISTRY.fullmatch(prefix):
        prefix += "/"
    rest = _AFTER.get(prefix[-1:], _BELOW)
    return image.startswith(prefix) and rest.fullmatch(image, len(prefix)) is not None


def is_of_same_repository(image: str, trusted: str) -> bool:
    """Return whether an image differs from a trusted one in tag and digest only; either may have none.

    Everything before them must be the same text, so no hostile name with another registry, port or path is accepted:
    names are not normalized, and ``trainer`` and ``docker.io/library/trainer`` are two repositories here.
    """
    repository = _repository(trusted)
    return image.startswith(repository) and _VERSION.fullmatch(image, len(repository)) is not None


def find_digest(image: str, image_id: str, pull_policy: str) -> str | None:
    """Return an image by the digest that its tag stood for when a node pulled it; None where that is not known.

    It is known only if any node can pull it by that digest, from the same repository with the same credentials:

    * The runtime must name a digest of this very repository. An image that was loaded into a node has none, or only its
      configuration's, which no registry knows; one that two repositories share may be named by the other one.
    * The policy must not be Never: nodes then run what was loaded into them, under the tag that was given to it there.

    Args:
        image: As the pod has it, with a tag or without.
        image_id: ``containerStatuses[].imageID``, as kubelet has it from the runtime; empty until the image is there.
        pull_policy: The container's.
    """
    found = _PULLED.fullmatch(image_id)
    if found is None or "@" in image or pull_policy == _NEVER:
        return None
    repository, digest = _repository(image), found[2]
    # No tag beside the digest: CRI-O refuses both together.
    return f"{repository}@{digest}" if _normalized(repository) == _normalized(_repository(found[1])) else None


def by_digest(image: str, digested: str | None, pull_policy: str | None) -> str:
    """Return an image by digest, if the digest is known and of the same repository, else unchanged."""
    usable = digested is not None and "@" not in image and pull_policy != _NEVER
    return digested if digested is not None and usable and is_of_same_repository(digested, image) else image


def _repository(image: str) -> str:
    """Return a well-formed name without digest and tag; a colon before the last slash belongs to a port."""
    name = image.partition("@")[0]
    last_slash = name.rfind("/")
    colon = name.find(":", last_slash + 1)
    return name if colon < 0 else name[:colon]


def _normalized(repository: str) -> str:
    """Return a repository with the registry and the path that Docker's short names leave out."""
    domain, slash, path = repository.partition("/")
    if not slash or not ("." in domain or ":" in domain or domain == "localhost"):
        domain, path = "docker.io", repository
    domain = "docker.io" if domain == "index.docker.io" else domain
    return f"{domain}/library/{path}" if domain == "docker.io" and "/" not in path else f"{domain}/{path}"
