"""The HTML report of a run, and its templates, figures and formats."""
