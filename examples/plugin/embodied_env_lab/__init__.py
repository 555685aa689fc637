"""Plug-ins of embodied_env, one of each kind."""
