"""Answers of a network on shares: who has it learns no question, who asks learns its answer and nothing else."""
