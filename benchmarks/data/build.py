"""Throughput of a build, text to shards, against Hugging Face ``tokenizers`` alone on the same text and core.

Every measurement is a child process; the peer's and ours alternate, in another order each round, and a ratio is the
median of the rounds' ratios, so that other work on the machine disturbs both sides alike. Prints ``key=value`` lines.
``build128``, ``build512`` and ``both`` are shares of the peer's rate on one core, ``both`` for both lengths together;
``both_cost`` is their time over that of the slower length alone; ``scale2`` is the speed-up of two processes over one,
on a larger text, since two interpreters are started and each fills its own cache of words. ``rss_mb_N`` is the peak
memory of the largest process of a build of N MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from growing_text import base_documents, write_growing_text
from peak_memory import PeakMemory, resident_bytes

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.tokens.byte_bpe import train_byte_bpe
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary, train_vocabulary

LENGTHS = {"build128": [(128, 20)], "build512": [(512, 80)], "both": [(128, 20), (512, 80)]}
VOCABULARY_SIZE = 30522
_LINES = 1024


class _Silent:
    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Discard a record."""


def main() -> None:
    """Run all measurements, or a single one as their child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text-mb", type=float, default=32.0, help="of text for the rates (%(default)s)")
    parser.add_argument("--scale-mb", type=float, default=128.0, help="of text for two processes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of every measurement (%(default)s)")
    parser.add_argument(
        "--memory-mb", type=int, nargs="*", default=[200, 2000], metavar="MB", help="sizes for the peak memory; none: -"
    )
    parser.add_argument(
        "--memory-processes", type=int, default=_cores(), metavar="N", help="that build them (%(default)s)"
    )
    parser.add_argument("--dupe-factor", type=int, default=5)
    parser.add_argument("--tokenizer", choices=("wordpiece", "byte-bpe"), default="wordpiece", help="(%(default)s)")
    parser.add_argument("--folder", type=Path, help="for scratch files, about 10 times the text (default: a new one)")
    parser.add_argument("--part", nargs=4, metavar=("WHAT", "TEXT", "VOCABULARY", "PROCESSES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        what, text, vocabulary, processes = arguments.part
        print(json.dumps(_measure(what, Path(text), vocabulary, int(processes), arguments.dupe_factor)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        _run(arguments, Path(folder))


def _run(arguments: argparse.Namespace, folder: Path) -> None:
    base = base_documents()
    sentences = [sentence for document in base for sentence in document]
    if arguments.tokenizer == "byte-bpe":
        vocabulary, content = folder / "tokenizer.json", train_byte_bpe(sentences, size=VOCABULARY_SIZE)
    else:
        vocabulary, content = (
            folder / "vocab.txt",
            train_vocabulary(sentences, size=VOCABULARY_SIZE, lower_case=True),
        )
    vocabulary.write_bytes(content)
    text = folder / "text.txt"
    slope = write_growing_text(text, arguments.text_mb, base)
    _print_figures(text_mb=text.stat().st_size / 1e6, type_growth_exponent=slope, load_average=os.getloadavg()[0])

    def child(what: str, path: Path, *, cores: set[int], processes: int = 1) -> dict[str, float]:
        return _child(what, path, vocabulary, cores, processes, arguments.dupe_factor)

    if arguments.rounds:
        _compare(arguments.rounds, text, child)
        if _cores() > 1:
            longer = folder / "longer.txt"
            slope = write_growing_text(longer, arguments.scale_mb, base)
            _print_figures(scale_text_mb=longer.stat().st_size / 1e6, scale_type_growth_exponent=slope)
            _scale(arguments.rounds, longer, child)
            longer.unlink()
    for megabytes in arguments.memory_mb:
        large = folder / "large.txt"
        began_s = time.perf_counter()
        slope = write_growing_text(large, megabytes, base)
        writing_s = time.perf_counter() - began_s
        found = child("build128", large, cores=os.sched_getaffinity(0), processes=arguments.memory_processes)
        large.unlink()
        figures = {
            "rss_mb": found["rss_mb"],
            "rss_mb_all_processes": found["together_mb"],
            "processes": found["processes"],
            "hit_rate": found["hit_rate"],
            "type_growth_exponent": slope,
            "mb_per_s": megabytes / found["seconds"],
            "seconds_to_write_text": writing_s,
            "seconds_to_build": found["seconds"],
            "load_average": os.getloadavg()[0],
        }
        _print_figures(**{f"{name}_{megabytes}": value for name, value in figures.items()})


def _compare(rounds: int, text: Path, child: Callable[..., dict[str, float]]) -> None:
    """Alternate all builds and the peer on one core, then print medians, the spread and the ratios."""
    hit_rate = 0.0

    def measure(name: str) -> dict[str, float]:
        nonlocal hit_rate
        found = child(name, text, cores=_one_core())
        hit_rate = found.get("hit_rate", hit_rate)
        return found

    seconds, cpu_seconds = _alternate(rounds, text, ["tokenizers", *LENGTHS], measure)
    ratios = {name: _ratio(seconds, "tokenizers", name) for name in LENGTHS}
    slower = max("build128", "build512", key=lambda name: median(seconds[name]))
    _print_figures(
        **ratios,
        # By processor time as well, which other work on the machine disturbs less.
        **{f"{name}_by_cpu": _ratio(cpu_seconds, "tokenizers", name) for name in LENGTHS},
        both_cost=_ratio(seconds, "both", slower),
        hit_rate=hit_rate,
    )


def _scale(rounds: int, text: Path, child: Callable[..., dict[str, float]]) -> None:
    """Alternate one process on one core with two on two."""
    cores = {"one": _one_core(), "two": set(sorted(os.sched_getaffinity(0))[:2])}

    def measure(name: str) -> dict[str, float]:
        return child("build128", text, cores=cores[name], processes=len(cores[name]))

    seconds, cpu_seconds = _alternate(rounds, text, list(cores), measure)
    _print_figures(scale2=_ratio(seconds, "one", "two"), scale2_by_cpu=2 * _ratio(cpu_seconds, "one", "two"))


def _alternate(
    rounds: int, text: Path, names: list[str], measure: Callable[[str], dict[str, float]]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Measure everything once per round, in another order each time; print and return wall and processor seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            found = measure(name)
            seconds[name].append(found["seconds"])
            cpu_seconds[name].append(found["cpu_seconds"])
    megabytes = text.stat().st_size / 1e6
    for name, values in seconds.items():
        _print_figures(
            **{
                f"{name}_mb_per_s": megabytes / median(values),
                f"{name}_seconds_least": min(values),
                f"{name}_seconds_most": max(values),
                f"{name}_cpu_seconds": median(cpu_seconds[name]),
            }
        )
    return seconds, cpu_seconds


def _ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    return median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def _child(
    what: str, text: Path, vocabulary: Path, cores: set[int], processes: int, dupe_factor: int
) -> dict[str, float]:
    command = [sys.executable, __file__, "--dupe-factor", str(dupe_factor)]
    command += ["--part", what, str(text), str(vocabulary), str(processes)]
    # Affinity is inherited: set for this process while the child is started, then restored.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    finally:
        os.sched_setaffinity(0, before)
    with PeakMemory(run.pid) as memory:
        output = run.communicate()[0]
    if run.returncode:
        raise SystemExit(f"{what} of {text.name} ended with exit code {run.returncode}")
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    peak_mb = max(found.pop("own_peak_mb"), memory.largest_mb)
    return {**found, "rss_mb": peak_mb, "together_mb": memory.together_mb, "processes": memory.num_processes}


def _measure(what: str, text: Path, vocabulary: str, processes: int, dupe_factor: int) -> dict[str, float]:
    """Time one build or one encoding. Reading the text is part of building, but not of encoding."""
    if what == "tokenizers":
        encoder = Encoder(read_vocabulary(Path(vocabulary)), lower_case=True)
        lines = text.read_text().split("\n")
        started_s, cpu_s = time.perf_counter(), time.process_time()
        num_tokens = 0
        for start in range(0, len(lines), _LINES):
            num_tokens += sum(map(len, encoder.encode(lines[start : start + _LINES])))
        return {
            "seconds": time.perf_counter() - started_s,
            "cpu_seconds": time.process_time() - cpu_s,
            "tokens": num_tokens,
            "own_peak_mb": resident_bytes(os.getpid())["VmHWM"] / 1e6,
        }
    root = text.with_name(f"{text.stem}-{what}")
    stage = PrepareStage(text=str(text), num_processes=processes, dupe_factor=dupe_factor)
    dataset = DatasetConfig(folder=str(root), vocabulary_file=vocabulary)
    started_s, cpu_s = time.perf_counter(), _cpu_s()
    info = build_dataset(stage, dataset, LENGTHS[what], _Silent())
    seconds, cpu_s = time.perf_counter() - started_s, _cpu_s() - cpu_s
    shutil.rmtree(root)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_s,
        "own_peak_mb": resident_bytes(os.getpid())["VmHWM"] / 1e6,
        "hit_rate": info.word_hit_rate or 0.0,
    }


def _cpu_s() -> float:
    """Processor time of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _one_core() -> set[int]:
    return {max(os.sched_getaffinity(0))}


def _print_figures(**values: float) -> None:
    for name, value in values.items():
        print(f"{name}={value:.4g}", flush=True)


if __name__ == "__main__":
    main()
