"""BERT and DistilBERT, computed on real tokens only."""
