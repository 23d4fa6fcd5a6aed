"""All that asks Triton, waits for it or says how it is started; nothing here starts a process."""
