"""What every test may use; there is nothing else to learn but this file.

Inputs: literals in the test, ``tmp_path``, and texts under ``tests/golden``. Observed outputs: return values,
files below ``tmp_path``, standard output of real processes. Tests of ranks start real ones, by Horovod under mpirun
(marker ``horovod``) or by torch.distributed (``ranks``); tests of command lines start real processes. Nothing is mocked
but the picture of the loss.

Where something is missing that a test needs, the test is skipped and the run's last lines say what to install
(``left_out``).

``golden`` compares a text that is too long for a literal with ``tests/golden/NAME``;
``pytest --update-golden`` writes it anew, and the diff is the review.
"""

from __future__ import annotations

import ctypes
import difflib
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["left_out", "run_cost"]
# A busy machine takes any time.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
_C_LIBRARY = ctypes.CDLL(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files under tests/golden anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("horovod") is None:
        for item in items:
            if item.get_closest_marker("horovod"):
                item.add_marker(pytest.mark.skip(reason="requires horovod; make setup builds it"))


def pytest_collection_finish() -> None:
    """Collections of garbage pass over what all tests have imported: 0.4 s each."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """Models hang in reference cycles, and the C library keeps what is freed: a worker grew to 6 GB."""
    yield
    if "torch" in sys.modules:
        gc.collect()
        if hasattr(_C_LIBRARY, "malloc_trim"):  # glibc
            _C_LIBRARY.malloc_trim(0)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Sums come out the same on any number of cores. Tests without torch do not pay for its import."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def no_picture_of_the_loss() -> Iterator[None]:
    """Runs inside a test's process draw none: 0.4 s, twice what a tiny run takes. Runs in processes of their own do."""
    report = sys.modules.get("bert_trainer.output.report")
    if report is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_loss", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def no_table_is_changed() -> Iterator[None]:
    """What the tests of one file change in place, those of all later ones find: 22 once failed by a single walk.

    A table is a dict, list or set in capitals, in a test or in what tests share; ``copy.deepcopy`` is the way out.
    """
    _table_texts.update((place, repr(table)) for place, table in _tables() if place not in _table_texts)
    yield
    now = {place: repr(table) for place, table in _tables()}
    changed = [place for place, text in now.items() if _table_texts.get(place, text) != text]
    _table_texts.update(now)
    assert not changed, f"tests of this file have changed {changed} in place, for all tests after them"


_table_texts: dict[str, str] = {}
"""Texts of all tables when the last file had ended."""


def _tables() -> Iterator[tuple[str, object]]:
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{TESTS}/"):
            for key, value in list(vars(module).items()):
                if key.isupper() and isinstance(value, dict | list | set):
                    yield f"{name}.{key}", value


@pytest.fixture
def no_collection() -> Iterator[None]:
    """For texts nested deeper than Python's stack: let no garbage of earlier tests be collected while one is parsed.

    Up to 3.11 a collection begins wherever a list is made, thus at the bottom of the stack too, where the finalizers
    of others find no frame left; pytest blames this test for them.
    """
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return ``compare(name, text)``, which fails where text differs from ``tests/golden/<name>``."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"tests/golden/{name} is missing; write it with pytest --update-golden"
        lines = difflib.unified_diff(
            path.read_text().splitlines(),
            text.splitlines(),
            f"tests/golden/{name}",
            "this run",
            lineterm="",
        )
        difference = "\n".join(lines)
        assert not difference, f"if that is meant, pytest --update-golden and read the diff\n{difference}"

    return compare
