"""What each paper claimed: published formulas as printed, never used for a promise."""
