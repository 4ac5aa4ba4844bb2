"""The app that Flower runs: a client, a server and their data."""
