"""A Flower app of someone's own: linear regression in numpy, averaged by Flower's FedAvg."""
