"""What else one could run: each module here is a process that `benchmarks.driver` asks for rounds."""
