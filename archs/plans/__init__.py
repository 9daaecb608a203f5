"""Plans of conversion and export: text models, mmproj files, drafts, checkpoints."""
