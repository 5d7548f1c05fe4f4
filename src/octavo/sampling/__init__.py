"""Turns sampling parameters into the rows that the sample operation takes."""
