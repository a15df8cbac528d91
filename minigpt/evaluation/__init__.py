"""How well a trained model predicts texts and answers questions, in figures that can be compared."""
