"""Which of two trained models predicts better, and how sure that is."""
