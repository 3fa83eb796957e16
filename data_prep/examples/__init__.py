"""Documents of tokens to pre-training examples, and these to records and their sidecars."""
