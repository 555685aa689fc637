"""Adapters to the interfaces of other evaluators."""
