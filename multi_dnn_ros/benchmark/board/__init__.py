"""What a board can do: the highest camera rate that it serves with each mix of DNNs, and the cost at that rate."""
