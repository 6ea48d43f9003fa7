"""The kinds of executors, one file each: `process` for real work, `inline` for tests."""
