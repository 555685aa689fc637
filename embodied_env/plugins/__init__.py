"""Built-in and third-party plug-ins by kind and name, imported on use."""
