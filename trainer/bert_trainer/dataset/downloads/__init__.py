"""Fetching what others publish: texts, vocabularies, weights, tasks. Nothing else of the project needs the network."""
