"""The floating-point operations that pretraining needs, whatever a backend really computes. Measures nothing."""

from __future__ import annotations

from bert_job.run_config import ModelConfig


def count_flop(config: ModelConfig, vocabulary: int, *, tokens: float, pairs: float, masked: float) -> float:
    """Return the operations of forward and backward pass, as "model FLOPs" are counted (PaLM, 2022, appendix B).

    Matrix products on real tokens and masked positions only: 6 for each weight and token, 12 for each layer, feature
    and pair of tokens of one row that see each other. Embeddings, LayerNorm, the next-sentence head, padding, and what
    activation checkpointing computes twice count nothing.

    Args:
        config: Of the model.
        vocabulary: Entries of the masked-LM head.
        tokens: Real ones.
        pairs: The sum over rows of the square of their tokens.
        masked: Predictions.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    ffn_products = 3 if config.architecture == "modernbert" else 2  # with the gate's
    weights = layers * (4 * width**2 + ffn_products * width * config.intermediate_size)
    head = width**2 + width * vocabulary
    # Of layers with a window, at most what it shows each token: rows' own lengths are no longer known here.
    narrow = 0 if config.attention_window is None else layers - -(-layers // (config.global_attention_every or 1))
    seen = (layers - narrow) * pairs + narrow * min(pairs, tokens * ((config.attention_window or 0) + 1))
    return 6.0 * weights * tokens + 12.0 * width * seen + 6.0 * head * masked
