"""Power, temperatures, clocks and throttling of the computer. Imports neither rclpy nor PyTorch."""
