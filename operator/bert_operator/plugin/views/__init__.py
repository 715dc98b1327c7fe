"""From objects to lines of text: pure functions that print nothing and ask nobody."""
