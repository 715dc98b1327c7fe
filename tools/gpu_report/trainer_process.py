"""The trainer's own command line, where packages of its image are missing: ``python -m gpu_report.trainer_process``.

--world gloo|nccl joins ranks by torch.distributed instead of Horovod, --deterministic asks PyTorch for kernels that
give the same bits twice; everything behind them goes to ``bert-train``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from functools import partial

from gpu_report import stand_ins


def main() -> int:
    """Return the trainer's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=("gloo", "nccl"))
    parser.add_argument("--deterministic", action="store_true")
    options, rest = parser.parse_known_args()
    stand_ins.install()
    if importlib.util.find_spec("matplotlib") is None:
        from bert_trainer.output import report

        # The picture of the loss, which a run draws at its end.
        vars(report)["plot_loss"] = lambda *_: None
    if options.deterministic:
        # cuBLAS reads it as it starts, and gives the same bits twice with it alone.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        import torch

        torch.use_deterministic_algorithms(True, warn_only=True)
    if options.world is not None:
        from bert_trainer.training import loop
        from gpu_report.torch_world import TorchWorld

        # The trainer has one library for its ranks. This measures another behind the same interface.
        vars(loop)["connect"] = partial(TorchWorld.join, options.world)
    from bert_trainer.__main__ import main as train

    return train(rest)


if __name__ == "__main__":
    sys.exit(main())
