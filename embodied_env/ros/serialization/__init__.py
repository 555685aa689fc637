"""Encoding and decoding of CDR messages by byte layout."""
