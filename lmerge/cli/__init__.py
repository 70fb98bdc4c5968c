"""The command line: a thin edge around the core, one module a command."""
