"""Labs 03 and 05: who is in the batch of an engine, and the engines that can stand behind it."""
