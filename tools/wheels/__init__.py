"""What tools/wheel and tools/check-torch are made of."""
