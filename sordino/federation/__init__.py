"""What happens in a round: local rules, channels, aggregation, and the training around it.

`round` has the six stages, `training` has budget, charges, scores and checkpoints around them,
`setup` prepares a federation and refuses what does not fit, `store/` keeps a run on disk.
"""
