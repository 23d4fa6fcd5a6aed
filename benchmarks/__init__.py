"""What measures the project."""
