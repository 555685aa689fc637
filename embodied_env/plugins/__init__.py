"""Built-in and third-party plug-ins by kind and name, which are imported when they are used."""
