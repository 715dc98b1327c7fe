"""examples/README.md lists every manifest with the overlays that its head names."""

from __future__ import annotations

import re

from examples import EXAMPLES, list_examples

ROW = re.compile(
    r"^\| (?P<recipe>.*?) ?\| `(?P<manifest>[^`]+\.yaml)` \| (?P<overlays>[^|]+) \| [^|]+ \|$", re.MULTILINE
)


def test_the_index_lists_every_manifest_with_its_overlays() -> None:
    listed = {row["manifest"]: row["overlays"] for row in ROW.finditer((EXAMPLES / "README.md").read_text())}
    assert listed == {
        example.path.relative_to(EXAMPLES).as_posix(): ", ".join(example.overlays) for example in list_examples()
    }


def test_every_recipe_says_what_it_needs_and_what_one_should_see() -> None:
    recipes = {example.path.parent for example in list_examples() if example.path.parent.name >= "10"}
    for folder in recipes:
        text = (folder / "README.md").read_text()
        assert "You should see" in text, folder
        assert "needs" in text, folder


def test_jobs_of_one_cluster_have_names_and_folders_of_their_own() -> None:
    texts = [example.path.read_text() for example in list_examples()]
    names = [re.findall(r"^  name: (\S+)$", text, re.MULTILINE)[0] for text in texts]
    folders = [re.findall(r"^    path: (\S+)", text, re.MULTILINE)[-1] for text in texts if "{path: runs/" not in text]
    assert len(set(names)) == len(names)
    assert len(set(folders)) == len(folders)
