"""Identification of the parameters of the embedded simulator from recorded runs."""
