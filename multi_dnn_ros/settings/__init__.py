"""The one typed schema of all parameters: ROS parameters, YAML files, generated documentation."""
