"""`python -m kernelforge` is `kforge`."""

from kernelforge.cli.main import main

if __name__ == "__main__":
    main()
