"""Readers of corpora: each turns files of one format into documents, in a stream.

They find and read text; they do not tokenise, drop duplicates or hold anything out.
"""
