"""What is made of the figures' results: plots, a page, a comparison, and the document's tables."""
