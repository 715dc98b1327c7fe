"""The overlays of deploy/kustomize on the node of these tests, changed as their users change them.

A user writes into lines that carry the mark ``# <-`` and nowhere else, and so do these functions: a value on another
line cannot be replaced. Images are not replaced at all: the node gets its own under the names that the overlay has.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from node import Cluster

KUSTOMIZE = Path(__file__).parents[2] / "deploy/kustomize"
_MARK = "# <-"


def fit(text: str, values: Mapping[str, str]) -> str:
    """Return a file of an overlay with other values on its marked lines, by key.

    Raises:
        AssertionError: A key stands on no marked line.
    """
    missing, lines = set(values), []
    for line in text.splitlines():
        before, mark, after = line.partition(_MARK)
        for key, value in values.items() if mark else ():
            before, found = re.subn(rf"\b{key}: [^,}}\s]+", f"{key}: {value}", before)
            missing -= {key} if found else set()
        lines.append(before + mark + after)
    assert not missing, f"no line that is marked '# <-' has {', '.join(sorted(missing))}"
    return "\n".join(lines) + "\n"


def fit_overlay(folder: Path, name: str, values: Mapping[str, Mapping[str, str]]) -> Path:
    """Copy what is shipped to a new folder, write into the marked lines of an overlay, and return the overlay's folder.

    values: by file and key.
    """
    shutil.copytree(KUSTOMIZE, folder)
    overlay = folder / "overlays" / name
    for file, changed in values.items():
        (overlay / file).write_text(fit((overlay / file).read_text(), changed))
    return overlay


def settings_of(overlay: Path) -> dict[str, Any]:
    """Return the operator's settings of an overlay."""
    found: dict[str, Any] = yaml.safe_load((overlay / "settings.yaml").read_text())
    return found


def name_images(node: Cluster, overlay: Path, operator: str, trainer: str) -> None:
    """Give the node's images the names that an overlay has for them, as a registry would have them."""
    (shipped,) = yaml.safe_load((overlay / "kustomization.yaml").read_text())["images"]
    names = {f"{shipped['newName']}:{shipped['newTag']}": operator, settings_of(overlay)["trainerImage"]: trainer}
    for name, own in names.items():
        node.ctr("images", "tag", "--force", own, name)
