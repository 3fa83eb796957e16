"""The tables and figures of the paper as commands: `python -m experiments table5 --scale=tiny`.

A table is a TOML file (`table5.toml`), and so is a scale (`scales/tiny.toml`): corpus, model, steps and tasks. The
programs are run as commands. Modules, in reading order:

    schema.py    the format of the TOML files; unknown keys raise an error
    runs.py      a run is one command, named by a hash of its settings
    assembly.py  a table at a scale: the runs that each cell needs
    runner.py    executes the unfinished runs
    report.py    the table and the figure, next to the paper's
    __main__.py  the command
"""
