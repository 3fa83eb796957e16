"""A report of the data: looks at samples of texts and at counts, and prints a line for each thing that is unusual.

`texts` and `examples` return findings, and `findings` prints them. A finding that is far out of bounds is an error,
unless --allow_unusual_data is given.
"""
