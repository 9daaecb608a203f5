"""Where a file's bytes come from: manifests of what was made of what by which encoders, and statements of it."""
