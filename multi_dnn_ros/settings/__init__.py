"""The schema of all parameters, and what is made from it: ROS parameters, parameter files, documentation."""
