"""Tokens to samples: sentence pairs, masks, order."""
