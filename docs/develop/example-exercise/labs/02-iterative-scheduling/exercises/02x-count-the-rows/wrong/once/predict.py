def predict(lengths):
    return len(lengths)
