"""The tables and figures of the paper as commands: `python -m experiments table5 --scale=tiny`.

A table is a TOML file (`table5.toml`), and so is a scale (`scales/tiny.toml`): corpus, model, steps and tasks. The
programs are run as commands. Modules, in reading order:

    schema.py    contents of the TOML files; unknown keys raise an error
    pieces.py    a piece is one command, named by a hash of its settings
    assembly.py  a table at a scale: the pieces that each of its cells needs
    runner.py    runs the pieces that are left
    report.py    the table and the figure next to the paper's
    __main__.py  the command
"""
