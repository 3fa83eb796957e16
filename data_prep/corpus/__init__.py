"""Raw text: which files, their lines, documents and sentences; words and vocabulary; the tokens on disk."""
