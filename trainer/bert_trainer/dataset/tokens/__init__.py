"""Sentences to WordPiece tokens, a block of text at a time."""
