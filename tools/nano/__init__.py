"""The trainer of models/nano: tokenizer, generated conversations, chat encoding, model, export."""
