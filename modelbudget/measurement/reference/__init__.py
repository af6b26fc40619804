"""Reference counts: classes of `transformers`, and GPT-2 module by module."""
