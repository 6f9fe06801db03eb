"""What synthetic prompts are made of: the same tokens for the same seed, coordinates, rank and slot."""
