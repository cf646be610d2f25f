"""The test suite; a package, so that workers import its modules by the names that pytest gives them."""
