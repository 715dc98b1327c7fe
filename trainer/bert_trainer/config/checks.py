"""Reads run configurations: loading, parsing, and the rules between fields (``bert_job.rules``).

All mistakes of a document are reported together, each with its path, what was found and what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bert_job.as_written import as_written
from bert_job.foreign_text import printable
from bert_job.problems import Problem
from bert_job.reporting import ProfileStepsSpec
from bert_job.rules import all_rules
from bert_job.run_config import CONTRACT_VERSION, MODEL_KINDS, ModelConfig, RunConfig
from bert_job.run_stages import FinetuneStage
from bert_job.section import single_errors
from bert_job.stages import STAGE_KINDS
from bert_job.upgrades import EARLIER_VERSIONS, upgrade
from bert_trainer.config.json_files import read_json_file
from bert_trainer.config.model_file import read_model_file
from bert_trainer.errors import InputError


def load_run_config(path: Path) -> RunConfig:
    """Read and check a document.

    Raises:
        InputError: the file is missing, not JSON, of another contract version, or holds values or
            combinations that cannot work; the message lists all of them.
    """
    return parse_run_config(read_json_file(path), source=str(path))


def parse_run_config(document: Any, *, source: str = "run configuration") -> RunConfig:
    """Check a document that is already in memory; raises InputError as ``load_run_config`` does."""
    has_begun = isinstance(document, dict) and document.get("contract_version") in EARLIER_VERSIONS
    if isinstance(document, dict):
        document = upgrade(document)
    version = document.get("contract_version") if isinstance(document, dict) else None
    # First and alone: in a document of another version every other message could be wrong.
    if version != CONTRACT_VERSION:
        raise InputError(
            f"{source}: contract_version is {version!r}, this trainer reads "
            f"{', '.join(map(str, EARLIER_VERSIONS))} and {CONTRACT_VERSION}",
            hint=_other_release(version),
        )
    try:
        # As JSON, in which a list is a tuple and 1 a float; sections of a job take nothing else for another type.
        text = json.dumps(document, ensure_ascii=False).encode()
        config = RunConfig.model_validate_json(text, by_alias=False, by_name=True)
    except (UnicodeEncodeError, RecursionError) as error:
        raise InputError(f"{source}: got text that is no UTF-8, or nested too deep; allowed: neither") from error
    except ValidationError as error:
        items = single_errors(error)
        hint = None
        lines = [f"{_field(item['loc'])}: got {item['input']!r:.200}; {printable(item['msg'])}" for item in items]
        if any(item["type"] == "extra_forbidden" for item in items):
            # Of the same version: a field that is new, and that this job sets.
            hint = f"fields that this trainer does not know: {_NEWER_OPERATOR}"
        raise _problems(source, lines, hint=hint) from error
    else:
        # What has begun under an earlier release has kept the rules of that one.
        lines = [] if has_begun else find_problems(config)
        if not lines:
            return config
    raise _problems(source, lines)


def resolve_model(config: RunConfig) -> RunConfig:
    """Return the configuration with the model's sizes, read from its file if it has one.

    Raises:
        InputError: the file cannot be read, describes no model, or one that the stages do not fit.
    """
    if isinstance(config.model, ModelConfig):
        return config
    try:
        resolved = config.model_copy(update={"model": read_model_file(config.model)})
    except InputError as error:
        raise InputError(f"model.config_file: {error.message}", hint=error.hint) from error.__cause__ or error
    lines = find_problems(resolved)
    if lines:
        raise _problems(config.model.config_file, lines)
    return resolved


def _problems(source: str, lines: list[str], *, hint: str | None = None) -> InputError:
    return InputError(f"{source}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines), hint=hint)


_NEWER_OPERATOR = "the operator is of a newer release; name the trainer image of that release in spec.image"


def _other_release(version: object) -> str:
    """Return what to do about a document of another contract version."""
    if not isinstance(version, int) or isinstance(version, bool):
        return "a run configuration is what the operator renders: 'bert-operator render JOB'"
    if version > CONTRACT_VERSION:
        return _NEWER_OPERATOR
    return "the operator is of an older release than this image: upgrade it, or name the image of its release"


def _field(location: tuple[int | str, ...]) -> str:
    """Return the path of a field as it stands in the document."""
    parts = [printable(str(part)) for part in location]
    if len(parts) > 1 and parts[0] == "model" and parts[1] in MODEL_KINDS:
        del parts[1]
    return ".".join(parts)


def parse_profile_steps(text: str) -> ProfileStepsSpec:
    """Read ``FIRST-LAST`` or ``STEP``, the command-line form of ``profile_steps``.

    Raises:
        InputError: it is neither.
    """
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text)
    if match is None:
        raise InputError(f"--profile: got {text!r}; allowed: steps as FIRST-LAST, such as 10-12, counted from 1")
    return ProfileStepsSpec(first=int(match[1]), last=int(match[2] or match[1]), stage=None, all_ranks=False)


def find_problems(config: RunConfig) -> list[str]:
    """Return every invalid combination as ``path: got; allowed; next``, by the rules for jobs."""
    found = all_rules.find_problems(as_written(config), config.world.ranks)
    return [*(_in_document(problem) for problem in found), *_seed_problems(config)]


def find_model_problems(model: ModelConfig) -> list[str]:
    """Return sizes that do not go together."""
    return [_in_document(problem) for problem in all_rules.find_model_problems(model)]


def _in_document(problem: Problem) -> str:
    """Return a problem with its path as the field stands here; what it says of others are the names in a job."""
    path = re.sub(rf"^spec\.|(?<=\])\.({'|'.join(STAGE_KINDS)})\b", "", problem.path)
    path = re.sub(r"\[(\d+)\]", r".\1", path)
    return str(replace(problem, path=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).lower()))


def _seed_problems(config: RunConfig) -> Iterator[str]:
    """Yield what a job cannot say: it gives a number of seeds, and no partitioning to ranks on their own."""
    for number, stage in enumerate(config.stages):
        if not isinstance(stage, FinetuneStage):
            continue
        path, seeds, ranks = f"stages.{number}", stage.run_seeds, config.world.ranks
        if not stage.synchronize_gradients and stage.optimizer.partitioning != "none":
            yield (
                f"{path}.optimizer.partitioning: got {stage.optimizer.partitioning!r}; allowed without "
                "synchronize_gradients: 'none', since every rank has a model of its own"
            )
        others: list[int] = []
        if not stage.synchronize_gradients:
            others = [seed + rank * len(seeds) for rank in range(1, ranks) for seed in seeds]
        if len({*seeds, *others}) < len(seeds) + len(others):
            yield (
                f"{path}.run_seeds: got {list(seeds)} for {ranks} rank(s)"
                + (f", which train {', '.join(map(str, others))} as well" if others else "")
                + "; allowed: seeds that are all different, such as consecutive ones: an equal one gives the same run "
                "again"
            )
