"""Speed: of the engine in this process, of any OpenAI-compatible server, and model files to measure with."""
