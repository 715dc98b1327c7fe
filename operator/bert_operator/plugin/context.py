"""What every verb is given: a way to the cluster, a place to write, a clock."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from bert_operator.plugin.console import Colours, Console
from bert_operator.plugin.kubectl import Kubectl


@dataclass(frozen=True, slots=True)
class Context:
    """What every verb gets: kubectl, console and clock."""

    kubectl: Kubectl = field(default_factory=Kubectl)
    console: Console = field(default_factory=Console)
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    pause: Callable[[float], None] = time.sleep

    @property
    def where(self) -> str:
        """Options that select the same cluster and namespace in further commands, each preceded by a blank."""
        return self.kubectl.where


Verb = Callable[[argparse.Namespace, Context], int]

CLUSTER_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("--context", "NAME", "of the kubeconfig; default: the current one"),
    ("--cluster", "NAME", "of the kubeconfig; default: that of the context"),
    ("--user", "NAME", "of the kubeconfig; default: that of the context"),
    ("--server", "URL", "of the API server; default: that of the cluster"),
    ("--as", "USER", "act as somebody else, if you may"),
    ("--as-group", "GROUP", "act as a member of a group, if you may"),
    ("--as-uid", "UID", ""),
    ("--request-timeout", "TIME", ""),
    ("--certificate-authority", "FILE", ""),
    ("--client-certificate", "FILE", ""),
    ("--client-key", "FILE", ""),
    ("--tls-server-name", "NAME", ""),
)
"""kubectl's own options that lead to a cluster, beside the namespace and the kubeconfig, and what they mean.

Rarer ones have no text and stand in no help: they mean what ``kubectl options`` says. Those that carry secrets
(``--token``, ``--password``) are left out: hints repeat the options, and others on the machine see them. A kubeconfig
keeps them.
"""


def common_options(*, is_again: bool = False) -> argparse.ArgumentParser:
    """Return a parent parser with the options common to all verbs; they are kubectl's own.

    is_again: They may stand before the verb already, and count unless they are given once more.
    """
    parent = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS if is_again else None)
    group = parser_group(parent)
    group.add_argument("-n", "--namespace", metavar="NAME", help="default: that of kubectl's context")
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: as kubectl finds it")
    for name, metavar, text in CLUSTER_OPTIONS:
        # kubectl takes several groups, and would act with the last one alone if this kept no more.
        how = "append" if name == "--as-group" else "store"
        group.add_argument(name, dest=_dest(name), metavar=metavar, help=text or argparse.SUPPRESS, action=how)
    parent.add_argument(
        "--color",
        choices=get_args(Colours),
        help="default: auto, on terminals alone, and not with NO_COLOR; always: for less -R and the like",
    )
    return parent


def parser_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Return the option group for selecting the cluster."""
    return parser.add_argument_group("cluster")


def kubectl_of(arguments: argparse.Namespace) -> Kubectl:
    """Return kubectl with the options of a command line."""
    options: list[str] = []
    for name in (*(name for name, _, _ in CLUSTER_OPTIONS), "--kubeconfig"):
        value = getattr(arguments, _dest(name), None)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                options += [name, str(one)]
    return Kubectl(options=tuple(options), namespace=getattr(arguments, "namespace", None))


def _dest(name: str) -> str:
    # ``as`` is a keyword, and ``server`` and the like may be words of a verb.
    return "kubeconfig" if name == "--kubeconfig" else f"of_{name.removeprefix('--').replace('-', '_')}"
