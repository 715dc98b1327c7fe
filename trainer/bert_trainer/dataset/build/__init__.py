"""Building datasets: passes over the corpus, resume, estimates, recipes, conversion."""
