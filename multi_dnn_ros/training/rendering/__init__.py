"""Renders generated road scenes: camera, road surface, meshes, sky, weather and sensor."""
