"""Backend "real" for a robot that moves by itself."""
