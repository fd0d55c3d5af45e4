"""Secret-shared prediction: queries, answers, activations."""
