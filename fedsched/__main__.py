"""`python -m fedsched` is `fedsched`."""

import sys

from fedsched.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
