"""Language models as generators: requests, providers, prices, and the account of every call."""
