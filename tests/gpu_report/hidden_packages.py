"""Processes for which packages are not installed, although they are here."""

from __future__ import annotations

from pathlib import Path

_CUSTOMIZE = """
import importlib.machinery
found_before = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {names!r} else found_before(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
"""


def hide_packages(folder: Path, *names: str) -> str:
    """Write what hides packages from a Python that starts with this folder in its PYTHONPATH; return the folder."""
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(names=names))
    return str(folder)
