"""What happens in a round: local rules, channels, aggregation, and the training around it.

`round` has the six stages, `training` has budget, charges, scores and checkpoints around them
(`training_stores` says what it needs of the places that keep it, `round_metrics` what it measures).
`setup` prepares a federation and refuses what does not fit, with `record_tensors` for its data and
`complete_protocol` for what a protocol leaves open; `processors` says on what the work runs.
`store/` keeps a run on disk.
"""
