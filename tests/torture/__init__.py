"""Causes faults by the thousand, and reports the promises that were broken.

    python -m tests.torture [--minutes=10] [--seed=0] [--only=kills,damage,properties]

`kills` ends a process at each of its writes, `damage` damages files of each format, `properties` searches for examples
without a property. Each trial runs in a child process. Its part, the seed and its number identify a trial, so that it
can be repeated.
"""
