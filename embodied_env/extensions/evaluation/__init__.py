"""Evaluate policies by recorded episodes, in one process or in workers, also of Ray."""
