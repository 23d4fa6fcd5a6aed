"""What is logged: the step log's writer, its lines and settings, and files that another process writes."""
