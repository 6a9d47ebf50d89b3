"""One extension of each registry: the brightest place of an image."""
