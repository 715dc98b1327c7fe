"""Weights from elsewhere, and for elsewhere: the checkpoint that a run starts from, and exports."""

from __future__ import annotations

from typing import Literal

from bert_job.section import FilePath, Section

ExportFormat = Literal["huggingface", "onnx", "tensorflow"]


class InitialCheckpointSpec(Section):
    """Weights to start from, unless the job already has a checkpoint of its own.

    The first pretrain stage starts from them; without pretrain stages every finetune stage does.
    """

    path: FilePath
    """Folder or file. A relative path is relative to the same folder as dataset.path."""
    format: Literal["bert-trainer", "huggingface", "tensorflow", "nvidia"] = "bert-trainer"
    """``bert-trainer``: a checkpoint or the output folder of another job; ``huggingface``: a folder with
    config.json and the weights, whole or in parts; ``tensorflow``: a folder with bert_config.json and a checkpoint of
    TensorFlow 1, as Google and MLPerf publish it, or the checkpoint's prefix; ``nvidia``: a ckpt_<step>.pt of NVIDIA's
    trainers, or the folder with them, of which the one of the highest phase and number is loaded."""
    load: Literal["weights", "weightsAndOptimizer", "none"] = "weights"
    """``weights``: the model alone; ``weightsAndOptimizer``: the optimizer's moments too, for bert-trainer and nvidia;
    ``none``: only check that the path can be read, and start from random weights."""


class ExportSpec(Section):
    """Export the newest model, of the last pretrain or finetune stage before, in a format that other programs load."""

    format: ExportFormat = "huggingface"
    """``huggingface``: a folder for ``AutoModel.from_pretrained``, with the tokenizer; ``onnx``: a graph for ONNX
    Runtime and others, fp32, on padded rows of any length, with settings and tokenizer; ``tensorflow``: a checkpoint
    with the names of Google's TensorFlow 1 code. Each is written with a model card to ``export/<format>`` in the output
    folder, or to ``export/<format>-<stage>`` where a later stage has the same format."""
