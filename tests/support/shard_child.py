"""A process that reads shards for a test, so that a reader which hangs or dies takes nobody along."""

from __future__ import annotations

import resource
from multiprocessing.connection import Connection

from bert_trainer.dataset.shards import read_shard
from bert_trainer.errors import InputError

ADDRESS_SPACE_BYTES = 8 << 30


def read_in_child(requests: Connection) -> None:
    """Read the file of every request; answer with how that went, or with its rows."""
    # A shape that memory is taken for blindly is a finding as well, and must not take the machine's.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    while True:
        path = requests.recv()
        if path is None:
            return
        try:
            requests.send(("read", read_shard(path)))
        except InputError as error:
            requests.send(("refused", str(error)))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the finding
            requests.send(("failed", repr(error)))
