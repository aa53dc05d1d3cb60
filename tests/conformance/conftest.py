"""Keep pytest out of the cases: they contain no tests, and their links may form cycles."""

collect_ignore = ["cases"]
