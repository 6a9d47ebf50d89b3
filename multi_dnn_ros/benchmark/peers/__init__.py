"""Programs that do without this package what it does, for `multi-dnn benchmark host`."""
