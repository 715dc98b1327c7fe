"""Which images are below a registry, folder or repository: by whole parts of a name, and never by half of one."""

from __future__ import annotations

import pytest

from bert_operator.render.images import is_below

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("prefix", "image"),
    [
        ("docker.io", "docker.io/foo/bar:1"),
        ("localhost:5000", "localhost:5000/foo"),
        # A repository of Docker Hub.
        ("trainer", "trainer:1"),
        ("docker.io/foo", "docker.io/foo"),
        ("docker.io/foo", "docker.io/foo:1"),
        ("docker.io/foo", f"docker.io/foo@{DIGEST}"),
        ("docker.io/foo", f"docker.io/foo/bar_x/baz--y.z:1.2-3@{DIGEST}"),
        ("docker.io/foo/", "docker.io/foo/bar"),
        ("docker.io/foo:", "docker.io/foo:1"),
        ("docker.io/foo@", f"docker.io/foo@{DIGEST}"),
        ("docker.io/foo:1", "docker.io/foo:1"),
        ("docker.io/foo:1", f"docker.io/foo:1@{DIGEST}"),
        ("registry.example:5000", "registry.example:5000/a/b"),
    ],
)
def test_what_is_below_a_prefix(prefix: str, image: str) -> None:
    assert is_below(image, prefix)


@pytest.mark.parametrize(
    ("prefix", "image"),
    [
        ("docker.io/foo", "docker.io/foobar/x"),
        ("docker.io/foo", "docker.io/foobar:1"),
        ("docker.io/foo/", "docker.io/foo"),
        ("docker.io/foo/", "docker.io/foo/"),
        ("docker.io/foo:", f"docker.io/foo@{DIGEST}"),
        ("docker.io/foo@", "docker.io/foo:1"),
        ("docker.io/foo:1", "docker.io/foo:12"),
        ("docker.io/foo:1", "docker.io/foo:2"),
        ("docker.io", "docker.io.evil.example/x"),
        # A port: another registry on the same host.
        ("registry.example", "registry.example:5000/x"),
        # No slash, hence no registry: Docker Hub's library/registry.example with a tag.
        ("registry.example", "registry.example:5000"),
        ("registry.example:5000", "registry.example:5000"),
        ("registry.example", f"registry.example@{DIGEST}"),
        ("localhost", "localhost:5000"),
        ("docker.io/foo", "evil.example/docker.io/foo"),
        ("docker.io/foo", "foo"),
        # No runtime takes these for names; nothing may depend on what it makes of them.
        ("docker.io/foo", "docker.io/foo/../bar/x"),
        ("docker.io/foo", "docker.io/foo//bar"),
        ("docker.io/foo", "docker.io/foo/bar:"),
        ("docker.io/foo", "docker.io/foo:1:2"),
        ("docker.io/foo", "docker.io/foo:1\n"),
        ("docker.io/foo", "docker.io/foo?x=docker.io/foo"),
        ("docker.io/foo", "docker.io/foo@docker.io/foo"),
    ],
)
def test_what_only_looks_as_if_it_were(prefix: str, image: str) -> None:
    assert not is_below(image, prefix)
