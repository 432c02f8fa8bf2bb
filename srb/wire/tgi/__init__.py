"""The format of Hugging Face's Text Generation Inference."""
