"""BERT pretraining: text to sharded HDF5, both phases, evaluation and export."""
