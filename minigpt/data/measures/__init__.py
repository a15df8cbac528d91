"""What is measured about prepared tokens: how the splits overlap, and what models that only count reach on them."""
