"""Fine-tuning, whatever the task: features in memory, models, a run, and the choice between several.

Imports `training` and what is below it; a task brings its rows and rules (see `task`).
"""
