"""The layers the decoder is made of."""
