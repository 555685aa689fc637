"""Policies by address."""
