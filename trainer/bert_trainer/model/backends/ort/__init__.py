"""ONNX Runtime: ORTModule around the model, for training (``engine: ort``)."""
