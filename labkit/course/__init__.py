"""The course around the library: lessons built, handed out and checked."""
