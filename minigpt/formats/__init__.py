"""Models and tokenizers of other programs, in and out: Hugging Face, llama.cpp and nanoGPT."""
