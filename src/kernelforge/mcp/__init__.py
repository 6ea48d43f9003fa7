"""The third face: tools for coding agents over the Model Context Protocol. Its SDK is the extra `mcp`."""
