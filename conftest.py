"""What holds for every pytest run in this repository: pytester, for the tests that run pytest on itself."""

pytest_plugins = ["pytester"]
