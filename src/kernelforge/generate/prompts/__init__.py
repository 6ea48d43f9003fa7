"""The texts of `generate.prompt`, one file each; `$name` is filled in."""
