"""Generated from proto/ by `make proto`: the wire contract is described there."""
