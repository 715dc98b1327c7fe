"""What every verb is given: a way to the cluster, a place to write, a clock."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bert_operator.plugin.console import Console
from bert_operator.plugin.kubectl import Kubectl


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a verb."""

    kubectl: Kubectl = field(default_factory=Kubectl)
    console: Console = field(default_factory=Console)
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    pause: Callable[[float], None] = time.sleep

    @property
    def where(self) -> str:
        """The options that lead further commands to the same cluster and namespace, with a blank before each."""
        return self.kubectl.where


Verb = Callable[[argparse.Namespace, Context], int]


def common_options(*, is_again: bool = False) -> argparse.ArgumentParser:
    """Return the options that every verb takes, as a parent of its parser; they are kubectl's own.

    is_again: They may stand before the verb already, and count unless they are given once more.
    """
    parent = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS if is_again else None)
    group = parser_group(parent)
    group.add_argument("-n", "--namespace", metavar="NAME", help="default: that of kubectl's context")
    group.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: the current one")
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: as kubectl finds it")
    group.add_argument("--as", dest="impersonate", metavar="USER", help="act as somebody else, if you may")
    return parent


def parser_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Return the group of options that lead to the cluster."""
    return parser.add_argument_group("cluster")


def kubectl_of(arguments: argparse.Namespace) -> Kubectl:
    """Return kubectl with the options of a command line."""
    options: list[str] = []
    for name, value in (
        ("--context", getattr(arguments, "context", None)),
        ("--kubeconfig", getattr(arguments, "kubeconfig", None)),
        ("--as", getattr(arguments, "impersonate", None)),
    ):
        if value is not None:
            options += [name, str(value)]
    return Kubectl(options=tuple(options), namespace=getattr(arguments, "namespace", None))
