"""The command line: arguments in, library calls, tables out. No knowledge of its own."""
