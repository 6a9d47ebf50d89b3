"""How a generated road scene becomes an image: camera, road surface, meshes, sky, weather and sensor."""
