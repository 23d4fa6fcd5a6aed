def predict(lengths):
    return len(lengths) * max(lengths)
