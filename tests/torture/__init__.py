"""A torture chamber: causes faults by the thousand, and says which of them were not held.

    python -m tests.torture [--minutes=10] [--seed=0] [--only=kills,damage,disk,fuzz,names,serve,workers]

`__main__` runs the parts in turn until the time is over, and prints the totals. Each trial runs in a child process,
which a fault may kill, and is known by its part, the seed and its number, so that it can be repeated: see `trials`.
`faults` makes the k-th operation on files fail, or kills the process there; `jobs` is the work that is disturbed.
"""
