"""One file a kind of vocabulary: how text without special tokens becomes ids, and ids become bytes."""
