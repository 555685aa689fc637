"""Pages that people read: the report of one run, and the shell and figures that it shares with comparisons."""
