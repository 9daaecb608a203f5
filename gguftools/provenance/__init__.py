"""Record where a file's bytes come from: manifests of inputs, encoders and outputs."""
