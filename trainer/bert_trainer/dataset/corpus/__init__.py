"""Text: corpora in many formats, as documents of sentences."""
