"""Requests, scheduler and step loop: what turns a loaded model into answers for many at once."""
