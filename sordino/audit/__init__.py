"""What an adversary really gets: measured lower bounds."""
