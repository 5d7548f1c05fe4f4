"""Model architectures, each written once against `octavo.ops.protocol.Ops`."""
