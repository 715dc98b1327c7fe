"""One of two ranks: the last leaves while the first starts sums without a pause, and notes in FOLDER how that ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.world import lost_peer
from bert_trainer.system.mpi_variables import read_size

MANY = 100_000

if __name__ == "__main__":
    folder, library = sys.argv[1:]
    world = connect(read_size(os.environ), 1, "torch" if library == "torch" else "horovod")
    world.all_reduce_(torch.ones(3))
    seen = False
    if world.rank == 0:
        try:
            # So many are never reached: the first that finds the other rank gone raises, or is told so as it waits.
            pending = [world.start_all_reduce_(torch.ones(3), f"sum.{number}") for number in range(MANY)]
            pending[0].wait()
        except Exception as error:
            seen = lost_peer(error)
        Path(folder, "0.json").write_text(json.dumps(seen))
    world.close()
