"""Reports unusual data: checks samples of texts and counts, and prints a line for each finding.

`texts` and `examples` return findings, and `findings` prints them. A finding that is far out of bounds is an error,
unless --allow_unusual_data is given.
"""
