"""``multi-dnn benchmark soak``: the node with everything switched on, for an hour."""
