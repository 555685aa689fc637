"""Teams of robots in one world, as a PettingZoo parallel environment."""
