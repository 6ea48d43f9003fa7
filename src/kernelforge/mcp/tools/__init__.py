"""One module per group of tools: what a client names -> a verb of `kernelforge.forge` -> text and typed output."""
