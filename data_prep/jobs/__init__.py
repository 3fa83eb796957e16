"""Data preparation by many processes: stages of jobs, who does them, and how shards come together."""
