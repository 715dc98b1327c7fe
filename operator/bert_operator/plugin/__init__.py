"""``kubectl bert``: verbs for people, spoken to a cluster through their own kubectl. The standard library alone."""
