"""Which words may follow on the command line; kubectl's own completion asks for them by ``kubectl_complete-bert``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_operator.errors import OperatorError
from bert_operator.plugin.context import CLUSTER_OPTIONS
from bert_operator.plugin.kubectl import JOBS, Kubectl
from bert_operator.plugin.waiting import AWAITED_FORMS

NO_FILES, FILES = ":4", ":0"
"""Last lines of an answer, as kubectl takes them: whether the names of files may follow as well."""

_CLUSTER_OPTIONS = ("--namespace", "--kubeconfig", *(name for name, _, _ in CLUSTER_OPTIONS))
# A shell waits for the answer.
_TIMEOUT = "--request-timeout=2s"


def complete(words: Sequence[str], verbs: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    """Return the lines of an answer: words that may stand at the end, and whether files may.

    Args:
        words: Behind ``kubectl bert``; the last one is being written and may be empty.
        verbs: The parser of each verb.
    """
    *before, unfinished = words or [""]
    if not before:
        return [*_matching(verbs, unfinished), NO_FILES]
    parser = verbs.get(before[0])
    if parser is None:
        return [NO_FILES]
    # Both have the same options: that of the verb are those that take a value.
    options = {name: action for action in parser._actions for name in action.option_strings}
    if unfinished.startswith("-"):
        return [*_matching(options, unfinished), NO_FILES]
    action = options.get(before[-1])
    if action is not None and action.nargs != 0:
        return _values_of(action, unfinished, _kubectl_of(before))
    dests = {action.dest for action in parser._actions if not action.option_strings}
    if dests & {"file", "files"}:
        return [FILES]
    is_given = any(
        word for word in before[1:] if not word.startswith("-") and options.get(_before(before, word)) is None
    )
    if dests & {"names"} or dests & {"name"} and not is_given:
        return [*_matching(_names(_kubectl_of(before), JOBS), unfinished), NO_FILES]
    return [NO_FILES]


def _values_of(action: argparse.Action, unfinished: str, kubectl: Kubectl) -> list[str]:
    if action.type is Path or action.metavar == "FILE":
        return [FILES]
    match action.dest:
        case "of_context" | "of_cluster" | "of_user":
            return [*_matching(_of_kubeconfig(kubectl, f"{action.dest.removeprefix('of_')}s"), unfinished), NO_FILES]
        case "kubeconfig":
            return [FILES]
        case "namespace":
            return [*_matching(_names(kubectl.within(None), "namespaces"), unfinished), NO_FILES]
        case "awaited":
            return [*_matching(AWAITED_FORMS, unfinished), NO_FILES]
    return [*_matching([str(choice) for choice in action.choices or ()], unfinished), NO_FILES]


def _before(words: Sequence[str], word: str) -> str:
    place = words.index(word)
    return words[place - 1] if place else ""


def _kubectl_of(words: Sequence[str]) -> Kubectl:
    """Return kubectl with the options to the cluster that stand among words."""
    found: dict[str, str] = {}
    for name, value in zip(words, words[1:], strict=False):
        long = "--namespace" if name == "-n" else name
        if long in _CLUSTER_OPTIONS:
            found[long] = value
    namespace = found.pop("--namespace", None)
    return Kubectl(options=tuple(word for pair in found.items() for word in pair), namespace=namespace)


def _names(kubectl: Kubectl, resource: str) -> list[str]:
    try:
        text = kubectl.call("get", resource, _TIMEOUT, "-o", "jsonpath={.items[*].metadata.name}")
    except OperatorError:
        # No completion is better than an error in the middle of a command line.
        return []
    return text.split()


def _of_kubeconfig(kubectl: Kubectl, what: str) -> list[str]:
    try:
        # It asks no cluster.
        return kubectl.within(None).call("config", "view", "-o", f"jsonpath={{.{what}[*].name}}").split()
    except OperatorError:
        return []


def _matching(words: Sequence[str] | Mapping[str, object], begin: str) -> list[str]:
    return sorted(word for word in words if word.startswith(begin))
