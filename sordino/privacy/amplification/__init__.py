"""What makes a round cost less than its noise alone: draws, shuffling, contraction."""
