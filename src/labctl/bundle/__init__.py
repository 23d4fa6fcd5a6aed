"""A file with everything that a machine without a network needs: the checkout, wheels, weights, engines, images."""
