"""How a simulator that is not ours is told to move: one protocol (`base`), and a dialect for each family of them."""
