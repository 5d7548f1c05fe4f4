"""Weight files: reading, writing, dequantising. `open_weights` is the door."""
