"""Live and recorded views: Foxglove and Rerun."""
