"""Messages in Protobuf."""
