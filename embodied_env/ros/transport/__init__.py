"""Nodes, receivers, QoS and serialization."""
