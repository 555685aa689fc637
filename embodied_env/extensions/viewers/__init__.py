"""Live and recorded views in Foxglove and Rerun."""
