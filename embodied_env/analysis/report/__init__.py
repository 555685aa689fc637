"""The HTML report of a run, and the templates, figures and formats that the comparison page shares with it."""
