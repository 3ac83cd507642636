"""What the weights say by themselves: QK and OV circuits, composition, copying, heads, path expansion."""
