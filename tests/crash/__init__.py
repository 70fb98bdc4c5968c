"""The crash proof: a real server, killed at random instants under load, loses nothing."""
