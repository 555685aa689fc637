"""Values that travel through a step, codes and protocols."""
