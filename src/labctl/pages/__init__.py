"""The pages that a browser opens: the live view of a scheduler, and the chat."""
