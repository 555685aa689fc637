"""Evaluation on a Ray cluster."""
