"""Translation of numbers written out in words, by the encoder-decoder of "Attention Is All You Need"."""
