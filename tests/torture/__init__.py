"""Causes thousands of faults, and reports broken promises.

    python -m tests.torture [--minutes=10] [--seed=0] [--only=kills,damage,properties]

`kills` ends a process at each write, `damage` damages files of each format, and `properties` searches for examples
that violate a property. Each trial runs in a child process. The part, the seed and the number identify a trial, so it
can be repeated.
"""
