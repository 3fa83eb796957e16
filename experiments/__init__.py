"""The tables and figures of the paper as commands: `python -m experiments table5 --scale=tiny`.

Each table is a TOML file, such as `table5.toml`. Each scale is a TOML file, such as `scales/tiny.toml`, with corpus,
model, steps and tasks. The programs are run as commands. Modules, in reading order:

    schema.py    the format of the TOML files; unknown keys raise an error
    runs.py      a run is one command, named by a hash of its settings
    assembly.py  a table at a scale: the runs that each cell needs
    runner.py    executes the unfinished runs
    report.py    the table and the figure, with the paper's scores
    __main__.py  the command
"""
