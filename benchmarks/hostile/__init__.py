"""What a hostile or careless client sends, and what becomes of the server."""
