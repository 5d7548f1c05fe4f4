"""KV blocks: ids, reference counts and who holds them. No tensors here; a backend owns the bytes."""
