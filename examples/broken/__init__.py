"""Payment APIs that are wrong in one way each, and one that is right.

`python -m examples.broken --list` names them; README.md says what each one costs.
"""
