"""The control step and its interfaces: Gymnasium, vector and PettingZoo environments."""
