"""The control step and its Gymnasium, vector and PettingZoo environments."""
