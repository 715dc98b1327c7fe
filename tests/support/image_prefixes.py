"""Images that are below a prefix of settings and of the admission policy, and those that only look so."""

from __future__ import annotations

DIGEST = "sha256:" + "0" * 64
SHA512 = "sha512:" + "0" * 128

BELOW = [
    # prefix, image
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
    ("docker.io/foo", f"docker.io/foo@{SHA512}"),
    ("docker.io/foo@", f"docker.io/foo@{SHA512}"),
    ("docker.io/foo", "docker.io/foo:" + "t" * 128),
    ("docker.io/", "docker.io/foo"),
    ("localhost", "localhost/foo"),
]
NOT_BELOW = [
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
    ("localhost:5000", "localhost:5000"),
    ("docker.io/foo", "docker.io/foo:" + "t" * 129),
    ("docker.io/foo", "docker.io/foo@sha256:" + "0" * 31),
    ("docker.io/foo@", f"docker.io/foo@{SHA512}0"),
    ("docker.io/foo:", f"docker.io/foo:@{DIGEST}"),
    ("docker.io/foo:", "docker.io/foo:1/x"),
]
