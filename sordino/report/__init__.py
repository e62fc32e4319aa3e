"""How a run is shown to people: the report, and the sinks that metrics flow into while a run is under way."""
