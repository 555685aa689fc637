"""Evaluate policies by recorded episodes, in this process, in worker processes or on a Ray cluster."""
