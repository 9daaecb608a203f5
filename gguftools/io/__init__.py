"""What lies on disk: GGUF files, checkpoints, and the one gate through which every file is written."""
