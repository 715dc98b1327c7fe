"""The checks: each a function from what was read to findings, with no cluster, no clock and no order among them."""
