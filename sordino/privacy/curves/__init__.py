"""Trade-off curves: facts about two distributions, and how it composes."""
