"""The five algorithms of the paper, one module each, behind one interface (``base``)."""
