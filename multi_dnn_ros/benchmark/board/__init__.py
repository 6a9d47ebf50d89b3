"""What a board can do: the highest camera rate of standard mixes of DNNs, and what it costs there."""
