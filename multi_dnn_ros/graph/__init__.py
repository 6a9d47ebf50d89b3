"""DNNs as traced graphs: tracing, costs of operations, cutting into stages."""
