"""The page of one run: what it hides from whom in plain questions, what it learned, what it cost, what happened."""
