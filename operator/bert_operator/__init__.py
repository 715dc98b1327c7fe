"""The operator: parses a ``BertPretrainJob`` and runs it, on this machine or in a cluster."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("bert-pretrain-operator")
except PackageNotFoundError:  # a bare source tree that nobody installed
    __version__ = "0+unknown"
