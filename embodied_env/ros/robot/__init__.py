"""The backend "real": a robot that moves by itself."""
