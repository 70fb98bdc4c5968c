"""The merge as a server: what arrives is kept on disk before it is answered."""
