"""The result kinds of this package, one module each."""
