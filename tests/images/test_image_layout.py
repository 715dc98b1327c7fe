"""Images reach a node as links to the layers that tools/images.sh keeps."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from image_layout import NAME_IN_LAYOUT, NAME_ON_NODE, ImageLayout


class Containerd:
    """A content store, and a client that writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.calls: list[tuple[str, ...]] = []
        self.index: dict[str, object] = {}
        self.members: set[str] = set()

    def ctr(self, *words: str, stdin: Path | None = None) -> str:
        self.calls.append(words[:2])
        if words[:2] == ("images", "import"):
            with tarfile.open(words[-1]) as tar:
                self.members = set(tar.getnames())
                file = tar.extractfile("index.json")
                assert file is not None
                self.index = json.load(file)
        else:
            digest = words[words.index("--expected-digest") + 1]
            assert stdin is not None
            assert digest == f"sha256:{hashlib.sha256(stdin.read_bytes()).hexdigest()}"
            assert words[words.index("--expected-size") + 1] == str(stdin.stat().st_size)
            assert (self.store / "blobs" / digest.replace(":", "/")).samefile(stdin)
        return ""


def put(layout: Path, text: str) -> dict[str, object]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    place = layout / "blobs/sha256" / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return {"digest": f"sha256:{digest}", "size": len(text)}


@pytest.fixture
def layout(tmp_path: Path) -> ImageLayout:
    folder = tmp_path / "images/layout"
    entries = []
    for name in ("trainer", "trainer-mpich"):
        layers = [put(folder, "libraries"), put(folder, f"code of {name}")]
        manifest = put(folder, json.dumps({"config": put(folder, f"config of {name}"), "layers": layers}))
        entries.append({**manifest, "annotations": {NAME_IN_LAYOUT: name}})
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (tmp_path / "images/lock").touch()
    return ImageLayout(folder)


def test_layers_are_linked_and_only_manifest_and_configuration_travel(layout: ImageLayout, tmp_path: Path) -> None:
    node = Containerd(tmp_path)
    layout.import_into(node.store, node.ctr, "trainer-mpich", "docker.io/trainer:mpich")
    assert node.calls == [("images", "import"), ("content", "ingest"), ("content", "ingest")]
    (entry,) = node.index["manifests"]  # type: ignore[misc]
    assert entry["annotations"] == {NAME_ON_NODE: "docker.io/trainer:mpich"}
    assert len([name for name in node.members if name.startswith("blobs/")]) == 2
    linked = {path.read_text() for path in (node.store / "blobs/sha256").iterdir()}
    assert linked == {"libraries", "code of trainer-mpich"}


def test_a_second_image_finds_the_shared_layers_there(layout: ImageLayout, tmp_path: Path) -> None:
    node = Containerd(tmp_path)
    for name in ("trainer", "trainer-mpich", "trainer"):
        layout.import_into(node.store, node.ctr, name, f"docker.io/{name}:dev")
    assert len(list((node.store / "blobs/sha256").iterdir())) == 3


def test_an_image_that_was_not_built_is_named_with_what_builds_it(layout: ImageLayout, tmp_path: Path) -> None:
    node = Containerd(tmp_path)
    with pytest.raises(AssertionError, match=r"got operator; holds trainer, trainer-mpich; tools/images.sh operator"):
        layout.import_into(node.store, node.ctr, "operator", "docker.io/operator:dev")
    assert node.calls == []
