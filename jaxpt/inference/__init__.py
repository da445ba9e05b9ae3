"""Text in, text out: streams of text, stop strings, files of prompts, dialogues."""
