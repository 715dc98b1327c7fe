"""The trainer's own command line, where packages of its image are missing: ``python -m gpu_report.trainer_process``.

--one-rank-by-nccl has a single rank sum its gradients through NCCL, --deterministic asks PyTorch for kernels that give
the same bits twice; everything behind them goes to ``bert-train``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from gpu_report import stand_ins


def main() -> int:
    """Return the trainer's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one-rank-by-nccl", action="store_true")
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
    if options.one_rank_by_nccl:
        from bert_trainer.parallel.torch_world import TorchWorld
        from bert_trainer.system.launched_rank import LaunchedRank
        from bert_trainer.training import run

        # The trainer joins no group for a single rank. NCCL refuses two on one card.
        vars(run)["connect"] = lambda *_, **__: TorchWorld(LaunchedRank("torchrun", 0, 1, 1), may_use_gpus=True)
    from bert_trainer.__main__ import main as train

    return train(rest)


if __name__ == "__main__":
    sys.exit(main())
