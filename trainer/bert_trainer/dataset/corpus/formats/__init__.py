"""Corpus formats: each reader turns the files of one format into a stream of documents.

Readers do not tokenize, deduplicate or hold documents out.
"""
