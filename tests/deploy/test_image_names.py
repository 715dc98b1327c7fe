"""Where guides say that a name of an image goes, it goes: nothing that is shipped is left then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from manifests import ROOT, copy_tree, helm_template, kustomize

GUIDES = ROOT / "docs/guides"
DIGEST = "sha256:" + "0" * 64
OVERLAYS = sorted(path.name for path in (ROOT / "deploy/kustomize/overlays").iterdir())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_two_lines_of_an_overlay_that_take_verified_digests(overlay: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(# kustomization\.yaml.*?)```", (GUIDES / "verify.md").read_text(), re.DOTALL)
    edits = yaml.safe_load(block.replace("sha256:...", DIGEST))
    folder = copy_tree(tmp_path) / "overlays" / overlay
    kustomization, settings = folder / "kustomization.yaml", folder / "settings.yaml"
    assert "registry.invalid" in kustomize(folder)
    kustomization.write_text(yaml.safe_dump({**yaml.safe_load(kustomization.read_text()), "images": edits["images"]}))
    named = re.sub(r"^trainerImage: .*$", f"trainerImage: {edits['trainerImage']}", settings.read_text(), flags=re.M)
    settings.write_text(named)
    built = kustomize(folder)
    assert "registry.invalid" not in built
    assert f"image: ghcr.io/OWNER/bert-operator@{DIGEST}\n" in built
    assert f"trainerImage: ghcr.io/OWNER/bert-trainer@{DIGEST}" in built


def test_the_values_of_the_chart_that_take_verified_digests() -> None:
    words = re.findall(r"--set (\S+)", (GUIDES / "verify.md").read_text().replace("sha256:...", DIGEST))
    built = helm_template(*(part for word in words for part in ("--set", word)))
    assert "registry.invalid" not in built
    assert f"ghcr.io/OWNER/bert-operator@{DIGEST}" in built
