"""Named entities, and other spans of words: by fine-tuning, and by features (paper, section 5.3)."""
