"""The neighbouring data sets on which a protocol reveals as much as its bound allows."""
