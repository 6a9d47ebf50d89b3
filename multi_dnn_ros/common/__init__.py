"""What every part may use. Imports nothing of ours."""
