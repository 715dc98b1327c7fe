"""Reports in headless Chromium, without a network: drawn as a page, and nothing in them runs.

The first test looks at the picture, the others at the document that the browser has made of the page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from bert_trainer.output.report_page import write_page
from bert_trainer.output.runs_page import write_index
from told_run import records, write_run

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="requires chromium"),
    pytest.mark.slow,
    pytest.mark.timeout(120),
]

LIVE = "document.title = 'taken over'"


def browse(page: Path, profile: Path, *options: str) -> str:
    """Open a page and return what the browser prints."""
    assert CHROMIUM is not None
    fixed = (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    )
    no_network = "--host-resolver-rules=MAP * ~NOTFOUND"
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    command = [CHROMIUM, *fixed, no_network, *sandbox, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def test_a_report_and_the_list_of_runs_are_drawn(tmp_path: Path) -> None:
    write_page(write_run(tmp_path / "runs" / "tiny"))
    pages = {"report": tmp_path / "runs/tiny/report.html", "index": write_index(tmp_path / "runs")}
    inks = {}
    for name, page in pages.items():
        picture = tmp_path / f"{name}.png"
        browse(page, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1000,1400")
        pixels = np.round(matplotlib.image.imread(picture)[..., :3] * 255)
        ground = pixels[2, 2]
        inks[name] = float((np.abs(pixels - ground).max(-1) > 40).mean())
        # The first curve's colour, which text does not have.
        assert (np.abs(pixels - np.array([0x25, 0x63, 0xA8])).max(-1) < 8).sum() > 40
    assert 0.01 < inks["report"] < 0.5
    assert 0.001 < inks["index"] < 0.5


def test_markup_in_texts_of_others_stays_text(tmp_path: Path) -> None:
    told = records()
    told[-1] = {**told[-1], "event": "failed", "message": f"<script>{LIVE}</script><b id=grown>"}
    page = write_page(write_run(tmp_path / "run", told))
    made = browse(page, tmp_path / "profile", "--dump-dom")
    assert "<title>tiny: report</title>" in made
    assert "&lt;script&gt;" in made
    assert "grown" in made
    assert "<b id" not in made


def test_even_a_script_that_got_in_would_not_run(tmp_path: Path) -> None:
    """The page's own policy: the escaping is taken away here, by hand."""
    page = write_page(write_run(tmp_path / "run"))
    planted = page.read_text().replace("</main>", f'<script>{LIVE}</script><img src=x onerror="{LIVE}"></main>')
    page.write_text(planted)
    assert "<title>tiny: report</title>" in browse(page, tmp_path / "profile", "--dump-dom")
    page.write_text(planted.replace("Content-Security-Policy", "Nothing"))
    assert "<title>taken over</title>" in browse(page, tmp_path / "profile", "--dump-dom")
