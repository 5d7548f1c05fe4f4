"""What the scripts that measure promises share, and the measurements of the second milestone."""
