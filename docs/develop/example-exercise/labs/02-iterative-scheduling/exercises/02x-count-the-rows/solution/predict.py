def predict(lengths):
    return sum(lengths)
