"""Policies on servers (openpi, GR00T), and a server of policies."""
