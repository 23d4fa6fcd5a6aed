"""Labs 03 and 05: a model with the labs' scheduler, and the engines behind it."""
