"""The tables and figures of the paper as commands: `python -m experiments table5 --scale=tiny`.

A table is a TOML file (`table5.toml`), and so is a scale (`scales/tiny.toml`): corpus, model, steps and tasks. Nothing
is trained here; the programs are run as commands, in the order in which a reader meets the modules:

    schema.py    what the files may hold; unknown keys raise
    pieces.py    a piece is one command, named by a hash of its settings
    assembly.py  a table at a scale: the pieces that each of its cells needs
    runner.py    runs the pieces that are left; several processes and machines share a folder
    report.py    the plan; the table and the figure beside the paper's
    __main__.py  the command
"""
