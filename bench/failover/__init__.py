"""What a consumer sees while the leading replica is killed again and again, and a plan changes."""
